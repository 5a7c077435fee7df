"""The systemd journal as history: kernel records of any boot, the log of a unit.

The journal's files are mapped into memory and read with Python's lock held, so a read that waits
for a dying disk would stop every thread. Inside the daemon nothing here runs: `journal_child` runs
it in a process with a deadline. Command-line tools may call it directly.

Fields: systemd.journal-fields(7). A kernel record is one with `_TRANSPORT=kernel` and
`SYSLOG_FACILITY` 0; only an old journald leaves the facility out for the kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..domain.model import EMPTY, Instant, Record
from ..host.boot import plain_boot_id
from ..host.clock import wall_clock
from ..host.paths import Paths
from .prefilter import Prefilter

log = logging.getLogger(__name__)

_FIELDS = (("SUBSYSTEM", "_KERNEL_SUBSYSTEM"), ("DEVICE", "_KERNEL_DEVICE"))


class JournalUnavailable(Exception):
    """The journal cannot be read; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """A boot that the journal knows, with the time of its first and last entry."""

    boot_id: str
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLine:
    """One line of a unit's log; `by` is the program that wrote it, `pid` its process."""

    at: datetime
    by: str
    pid: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One entry that came through /dev/kmsg, as stored: of the kernel itself or, with `kernel` False, of a process.

    `usec` is the kernel's stamp, `monotonic` and `realtime` when journald read it, all in microseconds.
    """

    text: str
    kernel: bool
    usec: int
    monotonic: int
    realtime: int
    boot_id: str
    level: int | None
    fields: Mapping[str, str]

    def to_record(self) -> Record:
        """Return it as history: it may be told, never acted on."""
        stamp = timedelta(microseconds=self.usec)
        late = timedelta(microseconds=max(0, self.monotonic - self.usec))
        return Record(
            text=self.text,
            at=Instant(boot_id=self.boot_id, boottime=stamp, utc=_utc(self.realtime) - late),
            source="journal",
            kernel=self.kernel,
            level=self.level,
            usec=self.usec,
            fields=self.fields,
        )


def kernel_records(
    paths: Paths,
    *,
    boot: str | None = None,
    back: timedelta | None = None,
    needles: Iterable[bytes] | None = None,
    is_open: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Yield the kernel's own records, oldest first: of one boot, of the last `back`, or all.

    `boot` is 0 for the newest, -1 for the one before, or a boot id. With `needles` only records that
    hold one come, and all of them while `is_open()`. Raises JournalUnavailable.
    """
    reader = open_journal(paths)
    match_kernel(reader, None if boot is None else resolve_boot(paths, boot))
    if back is None:
        reader.seek_head()
    else:
        reader.seek_realtime(int((wall_clock() - back).timestamp() * 1_000_000))
    prefilter = None if needles is None else Prefilter(needles)
    for entry in kernel_entries(reader, prefilter=prefilter, is_open=is_open):
        if entry.kernel:
            yield entry.to_record()


def boots(paths: Paths) -> tuple[Boot, ...]:
    """Return the boots that the journal knows, oldest first; raises JournalUnavailable."""
    reader = open_journal(paths)
    found = []
    with _reading():
        for name in reader.query_unique("_BOOT_ID"):
            boot_id = plain_boot_id(name.decode("ascii", "replace"))
            reader.flush_matches()
            reader.add_match(f"_BOOT_ID={boot_id}")
            reader.seek_head()
            if not reader._next():
                continue
            first = _utc(reader._get_realtime())
            reader.seek_tail()
            reader._previous()
            found.append(Boot(boot_id=boot_id, first=first, last=_utc(reader._get_realtime())))
    return tuple(sorted(found, key=lambda one: (one.last, one.first)))


def resolve_boot(paths: Paths, text: str) -> str:
    """Return the id of the boot that `text` names: 0, -1, -2 … or an id; raises JournalUnavailable."""
    known = boots(paths)
    try:
        place = int(text) if len(text) < 5 else 1
    except ValueError:
        place = 1
    if place <= 0 and -place < len(known):
        return known[place - 1].boot_id
    try:
        boot_id = plain_boot_id(text)
    except ValueError:
        boot_id = ""
    if any(one.boot_id == boot_id for one in known):
        return boot_id
    raise JournalUnavailable(
        f"the journal knows no boot {text!r}; it has {len(known)}, which `journalctl --list-boots` shows"
    )


def unit_lines(paths: Paths, unit: str, *, lines: int, boot_id: str | None = None) -> tuple[UnitLine, ...]:
    """Return the last `lines` lines of a unit and of PID 1 about it, oldest first; raises JournalUnavailable."""
    reader = open_journal(paths)
    of_boot = [f"_BOOT_ID={boot_id}"] if boot_id is not None else []
    found: list[UnitLine] = []
    with _reading():
        for match in (f"_SYSTEMD_UNIT={unit}", *of_boot):
            reader.add_match(match)
        reader.add_disjunction()
        for match in (f"UNIT={unit}", "_PID=1", *of_boot):
            reader.add_match(match)
        reader.seek_tail()
        while len(found) < lines and reader._previous():
            message = _field(reader, "MESSAGE")
            if message is None:
                continue
            pid = _field(reader, "_PID") or b""
            found.append(
                UnitLine(
                    at=_utc(reader._get_realtime()),
                    by=_text(_field(reader, "SYSLOG_IDENTIFIER") or _field(reader, "_COMM") or b""),
                    pid=int(pid) if pid.isdigit() else None,
                    text=_text(message),
                )
            )
    return tuple(reversed(found))


# -- for the child and the refill -----------------------------------------------------------------


def open_journal(paths: Paths) -> Any:
    """Return a raw reader of the host's system journal; raises JournalUnavailable.

    It is systemd-python's C reader without the conversions of its Python class, which cost more
    than the reading.
    """
    try:
        from systemd import _reader
    except ImportError as error:
        raise JournalUnavailable(f"systemd-python cannot be imported: {error}") from error
    with _reading():
        if str(paths.root) == "/":
            reader = _reader._Reader(_reader.LOCAL_ONLY | _reader.SYSTEM)
        else:
            reader = _reader._Reader(_reader.OS_ROOT, str(paths.root))
        if reader.get_usage() == 0:
            raise JournalUnavailable(
                f"no journal to read in {paths.at('/var/log/journal')} or {paths.at('/run/log/journal')}: "
                "journald does not run here, or its files need root"
            )
        return reader


def match_kernel(reader: Any, boot_id: str | None) -> None:
    """Restrict a reader to what came through /dev/kmsg, of one boot or all."""
    with _reading():
        reader.add_match("_TRANSPORT=kernel")
        if boot_id is not None:
            reader.add_match(f"_BOOT_ID={boot_id}")


def kernel_entries(
    reader: Any,
    *,
    prefilter: Prefilter | None = None,
    is_open: Callable[[], bool] = lambda: False,
    backwards: bool = False,
) -> Iterator[KernelEntry]:
    """Yield the entries from where the reader stands; with `prefilter` only what it wants, or all while open."""
    following: Callable[[], bool] = reader._previous if backwards else reader._next
    with _reading():
        while following():
            message = _field(reader, "MESSAGE")
            if message is None:
                continue
            if prefilter is not None and not prefilter.wants_bytes(message) and not is_open():
                continue
            monotonic, boot = reader._get_monotonic()
            facility, stamp, level = (
                _field(reader, name) for name in ("SYSLOG_FACILITY", "_SOURCE_MONOTONIC_TIMESTAMP", "PRIORITY")
            )
            yield KernelEntry(
                text=_text(message),
                kernel=facility is None or facility == b"0",
                usec=int(stamp) if stamp is not None and stamp.isdigit() and len(stamp) < 16 else monotonic,
                monotonic=monotonic,
                realtime=reader._get_realtime(),
                boot_id=boot.hex(),
                level=int(level) if level is not None and level in b"01234567" and level else None,
                fields=_fields(reader),
            )


@contextmanager
def _reading() -> Iterator[None]:
    """Turn what systemd-python raises for an unreadable or damaged journal into JournalUnavailable."""
    try:
        yield
    except OSError as error:
        raise JournalUnavailable(f"the journal cannot be read: {error.strerror or error}") from error


def _field(reader: Any, name: str) -> bytes | None:
    """Return one field of the entry, or None when it has none or that one cannot be read."""
    try:
        value: bytes = reader._get(name)
    except KeyError:
        return None
    except OSError as error:  # a damaged or foreign-compressed object; the entry's other fields are fine
        log.debug("a journal field cannot be read field=%s why=%s", name, error)
        return None
    return value


def _fields(reader: Any) -> Mapping[str, str]:
    found = {name: _text(value) for name, key in _FIELDS if (value := _field(reader, key)) is not None}
    return found or EMPTY


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _utc(usec: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=usec)
