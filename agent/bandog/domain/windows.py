"""Maintenance windows: when something disruptive that can wait is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of certain week days in one time zone.

    `days` are those on which it begins (names of `DAYS`). `until` at or before `begin` means the
    next day. Times are wall-clock times of `zone`, so the window moves with daylight saving.
    """

    name: str
    days: tuple[str, ...]
    begin: time
    until: time
    zone: ZoneInfo

    def is_open(self, utc: datetime) -> bool:
        """Return whether the window is open at the aware time `utc`."""
        local = utc.astimezone(self.zone)
        now = local.time()
        today = DAYS[local.weekday()] in self.days
        if self.begin < self.until:
            return today and self.begin <= now < self.until
        yesterday = DAYS[(local.weekday() - 1) % 7] in self.days
        return (today and now >= self.begin) or (yesterday and now < self.until)

    def next_opening(self, utc: datetime) -> datetime:
        """Return the time at which it opens next, in its own zone; `utc` itself while it is open."""
        if self.is_open(utc):
            return utc
        local = utc.astimezone(self.zone)
        for ahead in range(8):
            day = local.date() + timedelta(days=ahead)
            opening = datetime.combine(day, self.begin, tzinfo=self.zone)
            if DAYS[day.weekday()] in self.days and opening > local:
                return opening
        return datetime.combine(local.date() + timedelta(days=7), self.begin, tzinfo=self.zone)
