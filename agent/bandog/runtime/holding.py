"""Remembers across a death of the agent which plugin was being called, so that one cannot kill it for ever.

A plugin may end the whole process (`os._exit`, a fault in C code, a loop that the systemd watchdog ends). The
agent starts again, reads the same record, and dies again. So who holds the loop stands in a small
memory-mapped file in the runtime directory: it outlives the process, and a boot clears it. A start that finds a
name there counts a death against it. A clean stop forgets all deaths, so `systemctl restart` tries every
plugin again.

A kill from outside strikes whoever is at work by chance. On the loop that is a matter of microseconds: two deaths
within an hour at the same record, or three at any, are no chance. (In a flood a kill may well meet a good detector,
but not twice at one record.) A probe may be at work for a second in ten, so it takes three deaths in a row; the import
of a plugin is a good part of a short life, so it takes five. The proof of an action, which is asked for again at each
start, counts like a probe until it has come back once in this life; `run` in a thread does not count, as what ran
when the agent died is never run again. A death with nobody at work breaks the row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import mmap
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ..domain.model import Instant

log = logging.getLogger(__name__)

WITHIN = timedelta(hours=1)
AT_ONE_RECORD = 2
ON_THE_LOOP = 3
AT_WORK_IN_A_ROW = 3
LOADING_IN_A_ROW = 5
_SLOT = struct.Struct("<56pQ")  # a name with its length before it, and which call it is
_SLOTS = 32
_ALIVE = 2
LOOP, LOADING = 0, 1
"""Slots. `_ALIVE` holds the boot id from the start to a clean stop; who works in a thread takes one of the others."""
_MOST_DEATHS = 64
_MOST_TEXT = 1 << 16
_CALL = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One unclean end of the agent.

    `at` is the host's uptime in seconds at the start after it; `loop` who held the loop and `call` in which call,
    `loading` who was being imported or made, `probes` who were at work in threads while nobody held the loop.
    """

    at: float
    loop: str = ""
    call: int = 0
    loading: str = ""
    probes: tuple[str, ...] = ()


class Holding:
    """The file of one runtime directory. Without one, nothing is remembered and everything else goes on.

    `barred` maps the name of each plugin that ended the agent too often to the reason in words.
    """

    def __init__(self, folder: Path, now: Instant) -> None:
        self._deaths_file = folder / "deaths.json"
        self._map: mmap.mmap | None = None
        self._lock = -1
        self._names: dict[str, bytes] = {}
        self._came_back: set[tuple[str, str]] = set()
        self._free = list(range(_ALIVE + 1, _SLOTS))
        self.barred: Mapping[str, str] = {}
        try:
            self._open(folder / "holding", now)
        except (OSError, ValueError) as error:
            log.warning("deaths by plugins are not counted path=%s why=%s", folder, error)

    def _open(self, path: Path, now: Instant) -> None:
        size = _SLOT.size * _SLOTS
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            # A second agent beside a living one must neither judge it nor forget for it. This lock ends
            # with the process; one of flock(2) would live on in a child that is stuck before its exec.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, size)
            # In a full /run a write through the map would be a SIGBUS: let it be an error here.
            os.posix_fallocate(handle, 0, size)
            calls = mmap.mmap(handle, size)
        except OSError:
            os.close(handle)
            raise
        self._map, self._lock = calls, handle
        deaths = _recent(_read(self._deaths_file), now)
        last = _death(calls, now)
        calls[:] = bytes(size)
        if last is not None:
            deaths = (*deaths, last)[-_MOST_DEATHS:]
            _write(self._deaths_file, deaths)
            if last.loop or last.loading or last.probes:
                who = ",".join((last.loop, last.loading, *last.probes)).strip(",")
                log.error("the agent has died while plugins were at work plugins=%r", who)
        self.hold(now.boot_id, _ALIVE)
        self.barred = _barred(deaths)

    def hold(self, name: str, slot: int = LOOP, call: int = 0) -> None:
        """Note that `name` is called now; `call` tells one call from another (a record's stamp). Takes 0.2 µs."""
        if self._map is not None:
            text = self._names.get(name)
            if text is None:
                text = self._names[name] = name.encode("utf-8", "replace")
            _SLOT.pack_into(self._map, slot * _SLOT.size, text, call & _CALL)

    def let_go(self, slot: int = LOOP) -> None:
        """Note that the call has ended."""
        if self._map is not None:
            self._map[slot * _SLOT.size] = 0

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

    @contextlib.contextmanager
    def proof(self, name: str, method: str) -> Iterator[None]:
        """Note that action `name` is proving in a thread, unless `method` has come back before in this life."""
        if (name, method) in self._came_back:
            yield
            return
        try:
            with self.probe(name):
                yield
        finally:
            self._came_back.add((name, method))

    def close(self) -> None:
        """A clean stop: nobody is to blame, and all past deaths are forgiven."""
        ours, self._map = self._map, None
        if ours is not None:
            ours[:] = bytes(len(ours))
            # The map itself stays: a thread that was left behind may be about to write to it.
            os.close(self._lock)
            with contextlib.suppress(OSError):
                self._deaths_file.unlink(missing_ok=True)


def _death(calls: mmap.mmap, now: Instant) -> Death | None:
    """Return how the process before us ended, None if in order, in another boot, or if there was none."""

    def named(slot: int) -> str:
        name: bytes = _SLOT.unpack_from(calls, slot * _SLOT.size)[0]
        return name.decode("utf-8", "replace")

    if named(_ALIVE) != now.boot_id:
        return None
    loop, loading = named(LOOP), named(LOADING)
    probes = () if loop or loading else sorted({named(slot) for slot in range(_ALIVE + 1, _SLOTS)} - {""})
    call = _SLOT.unpack_from(calls, LOOP * _SLOT.size)[1] if loop else 0
    return Death(at=now.boottime.total_seconds(), loop=loop, call=call, loading=loading, probes=tuple(probes))


def _barred(deaths: tuple[Death, ...]) -> dict[str, str]:
    again = "`systemctl restart bandog` tries it again"
    barred = {}
    on_loop = Counter(death.loop for death in deaths if death.loop)
    at_one_record = Counter((death.loop, death.call) for death in deaths if death.loop)
    for name in [name for (name, _), count in at_one_record.items() if count >= AT_ONE_RECORD]:
        barred[name] = f"it ended the agent {on_loop[name]} times within the hour; {again}"
    for name in [name for name, count in on_loop.items() if count >= ON_THE_LOOP]:
        barred[name] = f"it ended the agent {on_loop[name]} times within the hour; {again}"
    for name in _in_a_row(deaths, LOADING_IN_A_ROW, lambda death: {death.loading} - {""}):
        barred[name] = f"the agent died at loading it, {LOADING_IN_A_ROW} times in a row; {again}"
    for name in _in_a_row(deaths, AT_WORK_IN_A_ROW, lambda death: set(death.probes)):
        barred[name] = f"it was at work each time that the agent died, {AT_WORK_IN_A_ROW} times in a row; {again}"
    return barred


def _in_a_row(deaths: tuple[Death, ...], times: int, names: Callable[[Death], set[str]]) -> Iterable[str]:
    """Yield who is named by that many deaths with no other between them, whenever that was."""
    for first in range(len(deaths) - times + 1):
        yield from set.intersection(*map(names, deaths[first : first + times]))


def _recent(deaths: tuple[Death, ...], now: Instant) -> tuple[Death, ...]:
    up = now.boottime.total_seconds()
    return tuple(death for death in deaths if 0 <= up - death.at <= WITHIN.total_seconds())


def _read(path: Path) -> tuple[Death, ...]:
    """Return what earlier starts wrote; what cannot be read is nothing."""
    try:
        told = json.loads(_start_of(path))
        return tuple(
            Death(
                at=float(one["at"]),
                loop=str(one["loop"]),
                call=int(one["call"]),
                loading=str(one["loading"]),
                probes=tuple(map(str, one["probes"])),
            )
            for one in told
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        log.warning("the record of deaths cannot be read path=%s why=%s", path, error)
        return ()


def _start_of(path: Path) -> bytes:
    """Read a regular file and no more of it than we ever write; nothing else in its place may hold us."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no file")
        return os.read(handle, _MOST_TEXT)
    finally:
        os.close(handle)


def _write(path: Path, deaths: tuple[Death, ...]) -> None:
    text = json.dumps([dataclasses.asdict(one) for one in deaths])
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
