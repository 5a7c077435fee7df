"""One fault prints many lines: a bounded table of bursts, each anchored at its first finding.

The window is anchored and never slides, because a sliding one hides ongoing trouble
(leptonai/gpud#1287); it is measured on the findings' own time, so that replay works. Five seconds
are what a study of a large cluster merges (arXiv:2503.11901); a detector may ask for another window.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .model import Finding, Instant

_SUBJECTS = 512
_BURSTS = 32
_KEPT = timedelta(minutes=1)


@dataclass(slots=True)
class Burst:
    """One event: when its first finding was, and the incident it went to, if any."""

    at: Instant
    seen: Instant
    window: timedelta
    incident: int | None = None


class Coalescer:
    """Says whether a finding is a new event or belongs to a burst that is known."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str, bool], dict[tuple[str, bool], Burst]] = {}

    def __len__(self) -> int:
        return sum(len(bursts) for bursts in self._table.values())

    def place(self, finding: Finding, acting: bool, now: Instant) -> tuple[Burst, bool]:
        """Return the burst of `finding`, and True when the finding begins it.

        Findings that may act and those that may not are never merged with each other: a forged line
        must not swallow a real one.
        """
        subject = (finding.kind, finding.subject, finding.drill)
        bursts = self._table.get(subject)
        if bursts is None:
            bursts = self._room(subject)
        key = (finding.burst, acting)
        known = bursts.get(key)
        fresh = Burst(at=finding.at, seen=now, window=finding.window)
        if known is not None and known.at.boot_id == finding.at.boot_id:
            passed = finding.at.boottime - known.at.boottime
            if abs(passed) <= known.window:
                return known, False
            if passed < timedelta(0):
                return fresh, True  # a line read late is an event of its own and anchors nothing
        bursts.pop(key, None)
        if len(bursts) >= _BURSTS:
            del bursts[next(iter(bursts))]
        bursts[key] = fresh
        return fresh, True

    def forget(self, finding: Finding) -> None:
        """Forget the bursts of a fault that has cleared: when it comes back, that is a new event."""
        self._table.pop((finding.kind, finding.subject, finding.drill), None)

    def prune(self, now: Instant) -> None:
        """Forget what ended a minute ago."""
        for subject in list(self._table):
            bursts = self._table[subject]
            if all(now.since(burst.seen) > burst.window + _KEPT for burst in bursts.values()):
                del self._table[subject]

    def _room(self, subject: tuple[str, str, bool]) -> dict[tuple[str, bool], Burst]:
        if len(self._table) >= _SUBJECTS:
            del self._table[next(iter(self._table))]
        bursts: dict[tuple[str, bool], Burst] = {}
        self._table[subject] = bursts
        return bursts
