"""Takes requests from the engine to their end: gates, mode, budgets, record, act, proof.

The order is the product's promise (DESIGN section 7): nothing disruptive happens before its intent
is on the disk, none twice, one at a time, and none that mode, gates or budgets do not allow. What
an interrupted run did is never guessed: it is not run again, it is proved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from ..domain.budgets import Ledger
from ..domain.changes import StepReport
from ..domain.model import Incident, Request, Result, ResultState, StepState
from ..domain.policy import format_duration
from ..host.site import Clock, Site
from ..plugin import Action
from ..services.registry import Service
from ..store.rows import SavedRequest
from ..store.store import Store
from . import acting
from .admission import RECHECK, Admission, Mode
from .course import Course, End
from .gates import Gate
from .guard import Guard
from .intent import Intent
from .progress import Progress
from .proving import Prover
from .slot import Slot
from .workers import Workers

log = logging.getLogger(__name__)

MAX_WAIT = timedelta(hours=1)
RETRIES = (timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=60))
CLOSE_WITHIN = timedelta(seconds=5)


class Executor:
    """Runs on the loop; every request is one task.

    `mode` and `service_of` are asked each time, so that a reload takes effect at once. `report`
    carries StepReports to the engine, `on_tripped(why)` says that the breaker has tripped.
    """

    def __init__(
        self,
        *,
        site: Site,
        clock: Clock,
        store: Store,
        ledger: Ledger,
        workers: Workers,
        actions: Mapping[str, Action],
        gates: Sequence[Gate],
        report: Callable[[StepReport], None],
        incident_of: Callable[[int], Incident | None],
        service_of: Callable[[str], Service | None],
        mode: Callable[[], Mode],
        on_tripped: Callable[[str], None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.ledger = ledger
        self.actions = actions
        self.would = 0
        self._site = site
        self._clock = clock
        self._store = store
        self._workers = workers
        self._guard = guard
        self._progress = Progress(store, report)
        self._on_tripped = on_tripped
        self._courses: dict[str, Course] = {}
        self._closing = False
        self._slot = Slot(self._courses, service_of, self.poke)
        self._admission = Admission(
            clock=clock,
            store=store,
            ledger=ledger,
            gates=gates,
            slot=self._slot,
            incident_of=incident_of,
            service_of=service_of,
            mode=mode,
            on_tripped=self._tripped,
        )
        self._intent = Intent(clock, self._progress)
        self._prover = Prover(
            site=site,
            clock=clock,
            workers=workers,
            guard=guard,
            progress=self._progress,
            healthy=self._admission.healthy,
        )

    # --- what others call ------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request that the engine made; returns at once."""
        if request.id in self._courses:
            return
        course = Course(request)
        self._progress.save(course)
        if not self._closing:
            self._begin(course)

    def drop(self, request: str, why: str) -> None:
        """Take back a request that has not begun to act; one that has goes on to its end."""
        course = self._courses.get(request)
        if course is not None:
            course.dropped = why
            course.wake.set()

    def poke(self) -> None:
        """Ask the gates again now: a hold, the configuration or the budgets have changed."""
        for course in self._courses.values():
            course.wake.set()

    def resume(self, saved: Iterable[SavedRequest]) -> None:
        """Take up the requests that had not ended when the agent last did; ended ones are passed over."""
        now = self._clock.now()
        for one in saved:
            if one.state.ended or one.request.id in self._courses:
                continue
            course = Course.of(one)
            if course.request.disruptive and course.state is StepState.WAITING:
                course.dropped = course.stale(now)
            self._begin(course)

    def under_way(self) -> tuple[SavedRequest, ...]:
        """Return every request that has not ended, with what it waits for."""
        return tuple(course.row() for course in self._courses.values())

    async def note(self, request: Request, facts: Mapping[str, Any]) -> None:
        """Add facts to a request's record and return once they are on the disk.

        Raises StoreError if they never will be and LookupError if the request is not under way.
        """
        course = self._courses.get(request.id)
        if course is None:
            raise LookupError(f"request {request.id} is not under way")
        course.notes.update(facts)
        await self._store.commit(course.row())

    def trip(self, why: str) -> None:
        """Open the breaker: bandog only observes, across reboots, until it is armed again."""
        self._admission.trip(why)

    def rearm(self) -> bool:
        """Close the breaker and give the host a fresh budget; False if there was nothing to re-arm."""
        if not self.ledger.rearm():
            return False
        self.save_budgets()
        self.poke()
        return True

    def save_budgets(self) -> None:
        """Commit the ledger's state if it has changed (after `ledger.fault_seen`, for one)."""
        self._admission.save()

    async def close(self, deadline: timedelta = CLOSE_WITHIN) -> None:
        """Stop taking and beginning requests. An act under way may end within `deadline`, 5 s at most.

        What does not is left as running in the store: the next start proves it, and runs nothing.
        """
        self._closing = True
        acts = {course.acting for course in self._courses.values() if course.acting is not None}
        for course in self._courses.values():
            if course.acting is None and course.task is not None:
                course.task.cancel()
        if acts:
            await asyncio.wait(acts, timeout=min(deadline, CLOSE_WITHIN).total_seconds())
        tasks = [course.task for course in self._courses.values() if course.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one request -----------------------------------------------------------------------

    def _begin(self, course: Course) -> None:
        self._courses[course.request.id] = course
        course.task = asyncio.get_running_loop().create_task(self._conduct(course), name=course.request.id)
        course.task.add_done_callback(lambda task: self._ended(course, task))

    async def _conduct(self, course: Course) -> None:
        self._finish(course, await self._way(course))

    async def _way(self, course: Course) -> End:
        action = self.actions.get(course.request.action)
        if action is None:
            return End(StepState.FAILED, f"no action {course.request.action} is loaded")
        if course.state is StepState.PROVING or (course.state is StepState.RUNNING and course.request.disruptive):
            return await self._prover.take_up(course, action)
        if course.request.disruptive:
            return await self._disruptive(course, action)
        return await self._harmless(course, action)

    def _finish(self, course: Course, end: End) -> None:
        del self._courses[course.request.id]
        course.state, course.why = end.state, end.why
        self._progress.save(course)
        if end.state is StepState.WOULD:
            self.would += 1
        self._progress.report(course, end.state, end.why, end.facts)
        self.poke()

    def _ended(self, course: Course, task: asyncio.Task[None]) -> None:
        """A fault of our own must not leave the incident waiting for ever."""
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        log.error("request failed by a fault of bandog request=%s", course.request.id, exc_info=error)
        self._slot.give_back(course)
        if course.request.id in self._courses:
            self._finish(course, End(StepState.FAILED, f"bandog's own fault: {type(error).__name__}"))

    async def _harmless(self, course: Course, action: Action) -> End:
        """Evidence and messages: at once, without gates, budgets or waiting for the disk."""
        if course.state is StepState.RUNNING:
            course.resumed += 1
            if course.resumed > 1:
                return End(StepState.FAILED, "the agent ended twice while it ran")
        for pause in (*RETRIES, None):
            course.state, course.started = StepState.RUNNING, self._clock.now()
            self._progress.save(course)
            self._progress.report(course, StepState.RUNNING)
            result = (await self._act(course, action)).result
            if result.state is not ResultState.RETRY:
                return await self._prover.judge(course, action, result)
            if pause is not None:
                await self._clock.sleep(pause)
        return End(StepState.FAILED, f"gave up after {len(RETRIES) + 1} attempts: {result.why}", result.facts)

    async def _disruptive(self, course: Course, action: Action) -> End:
        request = course.request
        if not request.live or request.facts.get("glued"):
            return End(StepState.SKIPPED, "what was seen is not live, and bandog never acts on it")
        while True:
            end = await self._admit(course)
            if end is not None:
                return end
            late: asyncio.Future[None] | None = None
            try:
                recorded = await self._intent.record(course, self._admission.charge(request))
                if isinstance(recorded, End):
                    return recorded
                if not recorded:
                    continue
                ran = await self._act(course, action)
                late = ran.late
            finally:
                self._slot.give_back(course, late=late, within=action.run_deadline)
            if ran.result.state is not ResultState.RETRY:
                return await self._prover.judge(course, action, ran.result)
            end = await self._again(course, ran.result)
            if end is not None:
                return end

    # --- before the act ----------------------------------------------------------------------

    async def _admit(self, course: Course) -> End | None:
        """Wait until nothing objects; None: the host's one slot is ours and the act may be recorded."""
        while True:
            course.wake.clear()
            if course.dropped is not None:
                return End(StepState.SKIPPED, course.dropped)
            answered = self._prover.answered(course.request)
            if answered is not None:
                return answered
            reason, patient = await self._admission.objection(course.request)
            if course.dropped is not None:
                return End(StepState.SKIPPED, course.dropped)
            pause = RECHECK
            if reason is None:
                decided = self._admission.decide(course)
                if decided is None or isinstance(decided, End):
                    return decided
                reason, pause = decided
            now = self._clock.now()
            course.blocked = None if patient else course.blocked or now
            if course.blocked is not None and now.since(course.blocked) > MAX_WAIT:
                return End(StepState.SKIPPED, f"not begun within {format_duration(MAX_WAIT)}: {reason}")
            self._progress.waits(course, reason)
            await self._pause(course, pause)

    # --- the act and after -------------------------------------------------------------------

    async def _act(self, course: Course, action: Action) -> acting.Ran:
        """Call `run`. Nothing stands between the durable intent and this call."""
        if course.request.disruptive:
            self._progress.report(course, StepState.RUNNING)
        course.acting = asyncio.get_running_loop().create_future()
        try:
            ran = await acting.run(action, course.request, self._site, self._workers, self._guard)
            if ran.result.state is ResultState.DONE:
                course.result, course.proving = ran.result, self._clock.now()
                course.state = StepState.PROVING
                self._progress.save(course)
            return ran
        finally:
            course.acting.set_result(None)
            course.acting = None

    async def _again(self, course: Course, result: Result) -> End | None:
        """RETRY: nothing was changed. Wait a little and go through the gates anew."""
        course.attempts += 1
        if course.attempts > len(RETRIES):
            return End(StepState.FAILED, f"gave up after {course.attempts} attempts: {result.why}", result.facts)
        course.state, course.started = StepState.WAITING, None
        self._progress.save(course)
        pause = RETRIES[course.attempts - 1]
        self._progress.report(course, StepState.WAITING, f"tries again in {format_duration(pause)}: {result.why}")
        await self._clock.sleep(pause)
        return None

    # --- small things ------------------------------------------------------------------------

    def _tripped(self, why: str) -> None:
        self.poke()
        if self._on_tripped is not None:
            self._on_tripped(why)

    async def _pause(self, course: Course, duration: timedelta) -> None:
        """Wait, or until something has changed for this request."""
        timer = asyncio.ensure_future(self._clock.sleep(duration))
        waker = asyncio.ensure_future(course.wake.wait())
        try:
            await asyncio.wait({timer, waker}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waker.cancel()
