"""The intent to act is on the disk before the act: a disk that does not take it holds the act back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from ..domain.model import StepState
from ..host.site import Clock
from ..store.rows import Row
from .course import Course, End
from .progress import Progress

DURABLE_WITHIN = timedelta(seconds=5)
"""A commit that takes longer says that the gates are to be asked again before the act."""
DURABLE_AT_LAST = timedelta(minutes=10)
_LOOK_EVERY = timedelta(seconds=5)


class Intent:
    """Records that a request is about to run. On the loop only."""

    def __init__(self, clock: Clock, progress: Progress) -> None:
        self._clock = clock
        self._progress = progress

    async def record(self, course: Course, charge: Sequence[Row]) -> End | bool:
        """Commit intent and charge, and wait for the disk.

        True: it is on the disk, act now. False: that took long, so ask the gates again. An End: there is no act.
        """
        course.state, course.started, course.why = StepState.RUNNING, self._clock.now(), ""
        commit = self._progress.save(course, *charge)
        try:
            if not await self._done_within(commit, DURABLE_WITHIN):
                self._progress.waits(course, f"the record cannot be written: {self._progress.why_stuck()}")
                end = await self._written_at_last(course, commit)
                if end is not None:
                    return end
                self._take_back(course)
                return False
        except asyncio.CancelledError:
            self._take_back(course)
            raise
        if commit.exception() is not None:
            return End(StepState.FAILED, f"the record cannot be written: {commit.exception()}")
        if course.dropped is not None:
            return End(StepState.SKIPPED, course.dropped)
        return True

    async def _written_at_last(self, course: Course, commit: asyncio.Future[None]) -> End | None:
        began = self._clock.now()
        while not commit.done():
            if course.dropped is not None:
                return End(StepState.SKIPPED, course.dropped)
            if self._clock.now().since(began) > DURABLE_AT_LAST:
                return End(StepState.FAILED, "the record could not be written within 10 minutes")
            await self._done_within(commit, _LOOK_EVERY)
        return None

    def _take_back(self, course: Course) -> None:
        """The intent stands on the disk but was not acted on: say so, before the gates are asked again."""
        course.state, course.started = StepState.WAITING, None
        self._progress.save(course)

    async def _done_within(self, future: asyncio.Future[None], limit: timedelta) -> bool:
        timer = asyncio.ensure_future(self._clock.sleep(limit))
        try:
            await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return future.done()
