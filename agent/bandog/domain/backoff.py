"""Geometric waits between acts on one service, which shrink again while it is healthy.

The first act is at once, then 10 s, 20 s, 40 s … 10 min. systemd's own backoff never shrinks after
months of health (systemd#43813); ours goes down one step for each 10 min of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from .codec import from_json, to_json
from .model import Instant

FIRST = timedelta(seconds=10)
CAP = timedelta(minutes=10)
HEALTH = timedelta(minutes=10)
_STEPS = 7  # 10 s · 2⁶ is more than the cap


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    level: int
    at: Instant
    healthy: Instant | None = None

    def now(self, now: Instant) -> int:
        """Return the level that is left after the health since."""
        if self.healthy is None:
            return self.level
        return max(0, self.level - max(0, now.since(self.healthy) // HEALTH))


class Backoff:
    """How long each service is still to be left alone."""

    def __init__(self, saved: Any = None) -> None:
        self._waits: dict[str, _Wait] = {}
        for service, data in saved.items() if isinstance(saved, Mapping) else ():
            try:
                wait = from_json(_Wait, data)
                level = max(0, min(wait.level, _STEPS))
                self._waits[str(service)] = replace(wait, level=level)
            except (TypeError, ValueError, KeyError, OverflowError):
                continue

    def left(self, service: str, now: Instant) -> timedelta:
        """Return how long to wait before the next act on `service`; zero or less is not at all."""
        wait = self._waits.get(service)
        level = wait.now(now) if wait is not None else 0
        if wait is None or level == 0:
            return timedelta(0)
        return min(FIRST * (1 << (level - 1)), CAP) - now.since(wait.at)

    def acted(self, service: str, now: Instant) -> None:
        """An act begins: the next one waits longer, and health has to be seen anew."""
        wait = self._waits.get(service)
        level = wait.now(now) if wait is not None else 0
        self._waits[service] = _Wait(level=min(level + 1, _STEPS), at=now)

    def healthy(self, service: str, now: Instant) -> None:
        """The service serves; later calls change nothing until the next act."""
        wait = self._waits.get(service)
        if wait is not None and wait.healthy is None:
            self._waits[service] = _Wait(level=wait.level, at=wait.at, healthy=now)

    def prune(self, now: Instant) -> None:
        """Forget the services whose wait has shrunk to nothing."""
        for service in [name for name, wait in self._waits.items() if wait.now(now) == 0]:
            del self._waits[service]

    def export(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {service: to_json(wait) for service, wait in self._waits.items()}
