"""When a line of a text log was written: uptime stamps, wall-clock stamps, or neither, as one Instant.

A text log is somebody's past: its boots are named `text`, `text.2` …, its wall clock is taken as it
stands. A line without an uptime gets one from the lines before it; one without a wall clock has none,
so that a line says the same wherever it stands.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from ..domain.model import Instant

UNKNOWN = datetime(1970, 1, 1, tzinfo=UTC)
"""The day of lines without a wall clock, at their uptime. `told_wall` tells it from a real one."""

# A boot that begins again, told from records that CPUs printed out of order.
_REBOOT = timedelta(seconds=60)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))? ?(Z|UTC|[+-]\d\d:?\d\d)?(?![\d:])",
)
_SYSLOG = re.compile(r"([^\W\d_]{3})[^\W\d_]*\.? +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: (\d{4}))?")


def told_wall(at: Instant) -> bool:
    """Return whether the line of `at` had a wall clock."""
    return at.utc != _later(UNKNOWN, at.boottime)


class Stamp(NamedTuple):
    """What a line says of its time: `uptime` since boot, `wall` (aware), `boot` where it names its boot."""

    uptime: timedelta | None = None
    wall: datetime | None = None
    boot: str | None = None


def wall_clock(text: str, *, zone: tzinfo, today: datetime) -> datetime | None:
    """Return the wall-clock time in `text`, or None if it is none that we read.

    A stamp without a zone is in `zone`; one without a year is the last such day up to `today`.
    """
    iso = _ISO.search(text)
    if iso is not None:
        year, month, day, hour, minute, second, fraction, offset = iso.groups()
        return _moment(int(year), month, day, hour, minute, second, fraction, _zone(offset, zone))
    syslog = _SYSLOG.search(text)
    if syslog is None or syslog[1].lower() not in _MONTHS:
        return None
    _, day, hour, minute, second, fraction, written = syslog.groups()
    month = str(_MONTHS[syslog[1].lower()])
    if written:
        return _moment(int(written), month, day, hour, minute, second, fraction, zone)
    for year in range(today.year, today.year - 9, -1):  # 29 February is every four years, or eight
        moment = _moment(year, month, day, hour, minute, second, fraction, zone)
        if moment is not None and moment <= today + timedelta(days=1):
            return moment
    return None


def _zone(offset: str | None, zone: tzinfo) -> tzinfo:
    if offset is None:
        return zone
    if offset in ("Z", "UTC"):
        return UTC
    try:
        parsed = datetime.strptime(offset.replace(":", ""), "%z").tzinfo
    except ValueError:  # +99:99 is in no zone
        return zone
    return parsed if parsed is not None else zone


def _moment(
    year: int, month: str, day: str, hour: str, minute: str, second: str, fraction: str | None, zone: tzinfo
) -> datetime | None:
    micro = int((fraction or "0").ljust(6, "0")[:6])
    try:
        # A leap second is written as :60, which Python does not have.
        moment = datetime(year, int(month), int(day), int(hour), int(minute), min(int(second), 59), micro, zone)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class TextClock:
    """Turns the stamps of one log, in its order, into instants."""

    def __init__(self) -> None:
        self._boots = 1
        self._boot: str | None = None
        self._started: datetime | None = None  # the wall clock's time of boot, where a line told both
        self._last = Instant(boot_id="text", boottime=timedelta(0), utc=UNKNOWN)

    def at(self, stamp: Stamp) -> Instant:
        """Return the instant of the next line."""
        self._turn(stamp)
        uptime, wall = stamp.uptime, stamp.wall
        if uptime is None:
            uptime = self._last.boottime if wall is None else self._since_start(wall)
        elif wall is not None:
            self._started = _later(wall, -uptime)
        self._last = Instant(
            boot_id=self._name(), boottime=uptime, utc=_later(UNKNOWN, uptime) if wall is None else wall
        )
        return self._last

    def _since_start(self, wall: datetime) -> timedelta:
        if self._started is None:
            self._started = _later(wall, -self._last.boottime)
        return max(wall - self._started, timedelta(0))

    @property
    def now(self) -> Instant:
        """The instant of the last line."""
        return self._last

    def _turn(self, stamp: Stamp) -> None:
        """Notice that another boot begins."""
        if stamp.boot is not None:
            if stamp.boot != self._boot:
                self._boot, self._started = stamp.boot, None
        elif stamp.uptime is not None and stamp.uptime < self._last.boottime - _REBOOT:
            self._boots += 1
            self._boot, self._started = None, None

    def _name(self) -> str:
        if self._boot is not None:
            return self._boot
        return "text" if self._boots == 1 else f"text.{self._boots}"


def _later(start: datetime, duration: timedelta) -> datetime:
    try:
        return start + duration
    except OverflowError:
        return start
