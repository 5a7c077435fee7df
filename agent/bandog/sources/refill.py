"""Brings back from the journal what was overwritten in the kernel's buffer before we read it.

Tried at 1,500 to 3,000 lines a second: every line was refilled. At 100,000 in a second the journal
itself holds a few in a hundred.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..domain import subjects
from ..domain.model import Finding, Instant, Record, Severity
from ..host.site import Clock
from .gap import Gap, Missing
from .journal import JournalUnavailable
from .kmsg import KmsgSource

log = logging.getLogger(__name__)

# journald may be seconds behind the kernel in a flood (5 s seen), so it is asked again before we give up.
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8))
_TURN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """How the refill of a gap ended; `why` says what stood in its way."""

    gap: Gap
    recovered: int
    lost: int
    fed: int
    why: str = ""

    def to_finding(self, now: Instant) -> Finding:
        """Return `agent.kmsg-lost` with what was lost for good and what came back."""
        return Finding(
            kind="agent.kmsg-lost",
            subject=subjects.AGENT,
            severity=Severity.WARNING if self.lost else Severity.INFO,
            at=now,
            detector="kmsg",
            facts={"lost": self.lost, "recovered": self.recovered},
        )


Lookup = Callable[[Sequence[Gap], timedelta, tuple[bytes, ...] | None], Awaitable[Sequence[Missing]]]
"""Asks the journal for gaps, one answer each; the needles of what is wanted, None for all.

The duration is by how much CLOCK_MONOTONIC is ahead of the kernel's stamps. Raises JournalUnavailable.
"""


class Refill:
    """Refills the gaps of a source one after the other, and feeds what is found late, with its own time.

    `ended` is called on the loop once for each gap, after its records were fed.
    """

    def __init__(
        self,
        source: KmsgSource,
        clock: Clock,
        *,
        lookup: Lookup,
        feed: Callable[[Record], None],
        ended: Callable[[Refilled], None],
    ) -> None:
        self._source, self._clock, self._lookup = source, clock, lookup
        self._feed, self._ended = feed, ended
        self._queue: deque[Gap] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, gap: Gap) -> None:
        """Take a gap; `KmsgSource` calls this as its `on_gap`."""
        self._queue.append(gap)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Give up what has not been refilled; the bookmark stays before it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        while self._queue:
            gaps = list(self._queue)
            self._queue.clear()
            answers, why = await self._ask(gaps)
            for gap, missing in zip(gaps, answers, strict=True):
                await self._refill(gap, missing, why)

    async def _ask(self, gaps: Sequence[Gap]) -> tuple[Sequence[Missing], str]:
        """Ask until the journal has reached the last gap's end, or for 15 s."""
        nothing = [Missing(found=0, wanted=(), numbers=(), whole=False)] * len(gaps)
        why = ""
        for pause in (*_PAUSES, None):
            try:
                answers = await self._lookup(gaps, self._source.shift, self._source.wanted_needles)
            except JournalUnavailable as error:
                log.warning("kernel records cannot be refilled gaps=%d why=%s", len(gaps), error)
                return nothing, str(error)
            if all(missing.whole for missing in answers):
                return answers, ""
            why = "the journal has not reached the end of the gap"
            if pause is not None:
                await self._clock.sleep(pause)
        return answers, why

    async def _refill(self, gap: Gap, missing: Missing, why: str) -> None:
        numbers: Iterable[int | None] = missing.numbers or (None for _ in missing.wanted)
        for count, (entry, number) in enumerate(zip(missing.wanted, numbers, strict=True), start=1):
            self._feed(self._source.late_record(gap, entry, number))
            if count % _TURN == 0:
                await asyncio.sleep(0)
        self._source.close_gap(gap)
        lost = gap.count - missing.found
        log.info("gap refilled lost=%d recovered=%d fed=%d", lost, missing.found, len(missing.wanted))
        self._ended(Refilled(gap=gap, recovered=missing.found, lost=lost, fed=len(missing.wanted), why=why))
