"""A clock that a test moves, and a way to let tasks go on without time passing."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ..domain.model import Instant

BOOT_ID = "b007" * 8
"""The boot id of a `FakeClock` until its first `reboot`."""


class FakeClock:
    """A clock that stands still until `advance`; implements `site.Clock`.

    `sleep` returns once `advance` has passed its end, so a test decides the order of things.
    """

    def __init__(
        self,
        *,
        boot_id: str = BOOT_ID,
        boottime: timedelta = timedelta(hours=1),
        utc: datetime = datetime(2026, 11, 30, 12, 0, tzinfo=UTC),
        synced: bool = True,
    ) -> None:
        self._now = Instant(boot_id=boot_id, boottime=boottime, utc=utc, synced=synced)
        self._boots = itertools.count(1)
        self._sleepers: list[tuple[timedelta, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        """Return the moment at which the clock stands."""
        return self._now

    def at_kernel_time(self, usec: int) -> Instant:
        """Return the instant `usec` microseconds after the start of this boot."""
        return self._now.plus(timedelta(microseconds=usec) - self._now.boottime)

    async def sleep(self, duration: timedelta) -> None:
        """Wait until the clock has been advanced by `duration`; other tasks run meanwhile."""
        if duration <= timedelta():
            await asyncio.sleep(0)
            return
        ended = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now.boottime + duration, ended))
        await ended

    @property
    def sleeping(self) -> int:
        """How many `sleep` calls wait for the clock."""
        return sum(not ended.done() for _, ended in self._sleepers)

    def advance(self, duration: timedelta) -> Instant:
        """Move every clock on by `duration`, wake who has slept long enough, return the new moment."""
        self._now = self._now.plus(duration)
        due = [one for one in self._sleepers if one[0] <= self._now.boottime]
        self._sleepers = [one for one in self._sleepers if one[0] > self._now.boottime]
        for _, ended in sorted(due, key=lambda one: one[0]):
            if not ended.done():
                ended.set_result(None)
        return self._now

    async def run(self, duration: timedelta, *, step: timedelta = timedelta(seconds=1)) -> None:
        """Advance in steps and let every task that has become ready go on between them."""
        passed = timedelta()
        while passed < duration:
            await settle()
            self.advance(min(step, duration - passed))
            passed += step
        await settle()

    def set_utc(self, utc: datetime, *, synced: bool | None = None) -> None:
        """Set the wall clock alone, as a person or NTP does."""
        self._now = replace(self._now, utc=utc, synced=self._now.synced if synced is None else synced)

    def reboot(self, *, down: timedelta = timedelta(minutes=3), synced: bool | None = None) -> Instant:
        """Begin another boot `down` later by the wall clock, 20 s old; return its first moment."""
        self._now = Instant(
            boot_id=f"{next(self._boots):04x}" * 8,
            boottime=timedelta(seconds=20),
            utc=self._now.utc + down,
            synced=self._now.synced if synced is None else synced,
        )
        return self._now


async def settle(rounds: int = 20) -> None:
    """Let every task that can run do so, without any real time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)
