"""Remembers across a death of the agent which plugin was being called, so that one cannot kill it for ever.

A plugin may end the whole process (`os._exit`, a fault in C code, a loop that the systemd watchdog ends). The
agent starts again, reads the same record, and dies again. So who holds the loop stands in a small
memory-mapped file in the runtime directory: it outlives the process, and a boot clears it. A start that finds a
name there counts a death against it. A clean stop forgets all deaths, so `systemctl restart` tries every
plugin again.

A kill from outside strikes whoever is at work by chance. On the loop that is a matter of microseconds, and two
such deaths within an hour are no chance. A probe may be at work for a second in ten, so it takes three deaths in a
row; the import of a plugin is a good part of a short life, so it takes five. Actions are not counted: what ran when
the agent died is never run again, and a proof ends by time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ..domain.model import Instant

log = logging.getLogger(__name__)

WITHIN = timedelta(hours=1)
ON_THE_LOOP = 2
PROBING_IN_A_ROW = 3
LOADING_IN_A_ROW = 5
_SLOT = 64
_SLOTS = 32
LOOP, LOADING = 0, 1
"""Slots; a probe takes one of the others while it is at work."""
_MOST_DEATHS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One unclean end of the agent.

    `at` is the host's uptime in seconds at the start after it; `loop` who held the loop, `loading` who was being
    imported or made, `probes` who were at work.
    """

    at: float
    loop: str = ""
    loading: str = ""
    probes: tuple[str, ...] = ()


class Holding:
    """The file of one runtime directory. Without one, nothing is remembered and everything else goes on.

    `barred` maps the name of each plugin that ended the agent too often to the reason in words.
    """

    def __init__(self, folder: Path, now: Instant) -> None:
        self._deaths_file = folder / "deaths.json"
        self._map: mmap.mmap | None = None
        self._free = list(range(LOADING + 1, _SLOTS))
        self.barred: Mapping[str, str] = {}
        try:
            self._open(folder / "holding", now)
        except (OSError, ValueError) as error:
            log.warning("deaths by plugins are not counted path=%s why=%s", folder, error)

    def _open(self, path: Path, now: Instant) -> None:
        size = _SLOT * _SLOTS
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(handle, size)
            self._map = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        deaths = _recent(_read(self._deaths_file), now)
        last = Death(
            at=now.boottime.total_seconds(),
            loop=self._name(LOOP),
            loading=self._name(LOADING),
            probes=tuple(sorted({name for name in map(self._name, range(LOADING + 1, _SLOTS)) if name})),
        )
        self._map[:] = bytes(size)
        if last.loop or last.loading or last.probes:
            deaths = (*deaths, last)[-_MOST_DEATHS:]
            _write(self._deaths_file, deaths)
        self.barred = _barred(deaths)

    def _name(self, slot: int) -> str:
        assert self._map is not None
        raw = self._map[slot * _SLOT : (slot + 1) * _SLOT]
        return raw[1 : 1 + min(raw[0], _SLOT - 1)].decode("utf-8", "replace")

    def hold(self, name: str, slot: int = LOOP) -> None:
        """Note that `name` is called now; about as dear as two assignments."""
        if self._map is not None:
            text = name.encode("utf-8", "replace")[: _SLOT - 1]
            self._map[slot * _SLOT : slot * _SLOT + 1 + len(text)] = bytes((len(text),)) + text

    def let_go(self, slot: int = LOOP) -> None:
        """Note that the call has ended."""
        if self._map is not None:
            self._map[slot * _SLOT] = 0

    @contextlib.contextmanager
    def probe(self, name: str) -> Iterator[None]:
        """Note that a probe is at work for the length of the block, in whatever thread."""
        try:
            slot = self._free.pop()
        except IndexError:  # more hang than can be told apart
            yield
            return
        self.hold(name, slot)
        try:
            yield
        finally:
            self.let_go(slot)
            self._free.append(slot)

    def close(self) -> None:
        """A clean stop: nobody is to blame, and all past deaths are forgiven."""
        ours, self._map = self._map, None
        if ours is not None:
            ours[:] = bytes(len(ours))
            ours.close()
            with contextlib.suppress(OSError):
                self._deaths_file.unlink(missing_ok=True)


def _barred(deaths: tuple[Death, ...]) -> dict[str, str]:
    again = "`systemctl restart bandog` tries it again"
    barred = {}
    for name, count in Counter(death.loop for death in deaths if death.loop).items():
        if count >= ON_THE_LOOP:
            barred[name] = f"it ended the agent {count} times within the hour; {again}"
    row = deaths[-LOADING_IN_A_ROW:]
    if len(row) == LOADING_IN_A_ROW and row[0].loading and len({death.loading for death in row}) == 1:
        barred[row[0].loading] = f"the agent died at loading it, {LOADING_IN_A_ROW} times in a row; {again}"
    row = deaths[-PROBING_IN_A_ROW:]
    if len(row) == PROBING_IN_A_ROW:
        for name in set(row[0].probes).intersection(*(death.probes for death in row)):
            barred[name] = f"it was at work each time that the agent died, {PROBING_IN_A_ROW} times in a row; {again}"
    return barred


def _recent(deaths: tuple[Death, ...], now: Instant) -> tuple[Death, ...]:
    up = now.boottime.total_seconds()
    return tuple(death for death in deaths if 0 <= up - death.at <= WITHIN.total_seconds())


def _read(path: Path) -> tuple[Death, ...]:
    """Return what earlier starts wrote; what cannot be read is nothing."""
    try:
        told = json.loads(path.read_bytes()[: 1 << 16])
        return tuple(
            Death(
                at=float(one["at"]),
                loop=str(one["loop"]),
                loading=str(one["loading"]),
                probes=tuple(map(str, one["probes"])),
            )
            for one in told
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("the record of deaths cannot be read path=%s why=%s", path, error)
        return ()


def _write(path: Path, deaths: tuple[Death, ...]) -> None:
    text = json.dumps([dataclasses.asdict(one) for one in deaths])
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
