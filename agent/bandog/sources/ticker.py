"""The second hand of the loop: what must happen each second hangs on it, and it tells how busy the loop is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta


class Ticker:
    """Calls `on_tick(late)` on the loop every `every`, without drift; `late` is how long past its time.

    Ticks that the loop missed altogether are not made up for but counted. An exception of `on_tick`
    goes to the loop's exception handler and ends nothing.
    """

    def __init__(self, on_tick: Callable[[timedelta], None], *, every: timedelta = timedelta(seconds=1)) -> None:
        self._on_tick = on_tick
        self._every = every.total_seconds()
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._worst = timedelta()
        self.ticks = 0
        self.missed = 0

    def start(self) -> None:
        """Begin; the first tick comes one period from now."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._every
        self._handle = loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """End; no tick comes after this."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def take_worst(self) -> timedelta:
        """Return the worst lateness since the last call, and forget it."""
        worst, self._worst = self._worst, timedelta()
        return worst

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        late = max(0.0, loop.time() - self._due)
        skipped = int(late // self._every)
        self.missed += skipped
        self.ticks += 1
        self._due += self._every * (skipped + 1)
        self._handle = loop.call_at(self._due, self._tick)
        lateness = timedelta(seconds=late)
        self._worst = max(self._worst, lateness)
        self._on_tick(lateness)
