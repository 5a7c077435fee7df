"""What the daemon asks the journal: always away from the loop, as a journal on a dying disk may never answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ..host.paths import Paths
from ..host.site import Clock
from ..sources.gap import Gap, Missing
from ..sources.journal import JournalUnavailable, boots
from ..sources.journal_child import Child, kernel_gaps
from .workers import Workers, WorkersBusy, WorkerTimeout

COUNT = timedelta(seconds=5)
REFILL = timedelta(seconds=25)


class JournalDesk:
    """Asks in workers under a deadline; what may hang is read by a program that `child` runs."""

    def __init__(self, paths: Paths, clock: Clock, workers: Workers, child: Child) -> None:
        self._paths = paths
        self._clock = clock
        self._workers = workers
        self._child = child

    async def boots_last_hour(self) -> int | None:
        """Return how many boots the last hour has seen, this one too; None where the journal cannot tell."""
        now = self._clock.now().utc

        def count() -> int:
            return sum(now - one.first <= timedelta(hours=1) for one in boots(self._paths))

        try:
            return await self._workers.run(count, deadline=COUNT, name="boots")
        except (WorkerTimeout, WorkersBusy, JournalUnavailable):
            return None

    async def missing(
        self, gaps: Sequence[Gap], shift: timedelta, needles: tuple[bytes, ...] | None
    ) -> tuple[Missing, ...]:
        """Return what the journal has of records that were overwritten before we read them; a `refill.Lookup`."""
        boot = self._clock.now().boot_id
        try:
            return await self._workers.run(
                lambda: kernel_gaps(self._child, self._paths, gaps, boot_id=boot, shift=shift, needles=needles),
                deadline=REFILL,
                name="refill",
            )
        except (WorkerTimeout, WorkersBusy) as error:
            raise JournalUnavailable(str(error)) from error
