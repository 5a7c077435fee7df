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
from ..domain.model import EMPTY, Incident, Instant, Proof, ProofState, Request, Result, ResultState, StepState
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
from .slot import Slot
from .workers import Workers

log = logging.getLogger(__name__)

MAX_WAIT = timedelta(hours=1)
MAX_REASONS = 20
"""Reasons of one request that are reported; a gate whose words change each time must not fill the record."""
DURABLE_WITHIN = timedelta(seconds=5)
DURABLE_AT_LAST = timedelta(minutes=10)
RETRIES = (timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=60))
CLOSE_WITHIN = timedelta(seconds=5)
PROVE_AT_MOST_EVERY = timedelta(milliseconds=100)


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
        self._report_to = report
        self._on_tripped = on_tripped
        self._courses: dict[str, Course] = {}
        self._proofs: dict[tuple[str, str], tuple[Instant, Request]] = {}
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

    # --- what others call ------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request that the engine made; returns at once."""
        if request.id in self._courses:
            return
        course = Course(request)
        self._save(course)
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
            return await self._take_up_proof(course, action)
        if course.request.disruptive:
            return await self._disruptive(course, action)
        return await self._harmless(course, action)

    def _finish(self, course: Course, end: End) -> None:
        del self._courses[course.request.id]
        course.state, course.why = end.state, end.why
        self._save(course)
        if end.state is StepState.WOULD:
            self.would += 1
        self._report(course, end.state, end.why, end.facts)
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
            self._save(course)
            self._report(course, StepState.RUNNING)
            result = (await self._act(course, action)).result
            if result.state is not ResultState.RETRY:
                return await self._judge(course, action, result)
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
                if not await self._record(course):
                    continue
                ran = await self._act(course, action)
                late = ran.late
            except _Given as given:
                return given.end
            finally:
                self._slot.give_back(course, late=late, within=action.run_deadline)
            if ran.result.state is not ResultState.RETRY:
                return await self._judge(course, action, ran.result)
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
            answered = self._answered(course.request)
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
            self._wait_for(course, reason)
            await self._pause(course, pause)

    def _answered(self, request: Request) -> End | None:
        """An act that began after this fault was seen and is proved answers it too, and costs no budget
        again: a fault of the links strikes eight GPUs of one service at once."""
        began, other = self._proofs.get((request.action, request.service or ""), (None, request))
        if began is None or other.with_ != request.with_ or request.drill:
            return None
        if began.boot_id != request.found_at.boot_id or began.since(request.found_at) <= timedelta():
            return None
        what = f"{other.action} of {other.service} for incident #{other.incident}"
        return End(StepState.PROVED, f"{what} came after it was seen, and is proved")

    async def _record(self, course: Course) -> bool:
        """Commit intent and charge, and wait for the disk. False: it took long, so ask the gates again.

        Raises _Given when the request ends here.
        """
        course.state, course.started, course.why = StepState.RUNNING, self._clock.now(), ""
        commit = self._store.commit(course.row(), *self._admission.charge(course.request))
        try:
            if not await self._done_within(commit, DURABLE_WITHIN):
                self._wait_for(course, f"the record cannot be written: {self._store.why_stuck() or 'no answer'}")
                await self._written_at_last(course, commit)
                self._unrecord(course)
                return False
        except asyncio.CancelledError:
            self._unrecord(course)
            raise
        if commit.exception() is not None:
            raise _Given(End(StepState.FAILED, f"the record cannot be written: {commit.exception()}"))
        if course.dropped is not None:
            raise _Given(End(StepState.SKIPPED, course.dropped))
        return True

    async def _written_at_last(self, course: Course, commit: asyncio.Future[None]) -> None:
        began = self._clock.now()
        while not commit.done():
            if course.dropped is not None:
                raise _Given(End(StepState.SKIPPED, course.dropped))
            if self._clock.now().since(began) > DURABLE_AT_LAST:
                raise _Given(End(StepState.FAILED, "the record could not be written within 10 minutes"))
            await self._done_within(commit, RECHECK)

    def _unrecord(self, course: Course) -> None:
        """The intent stands on the disk but was not acted on: say so, before the gates are asked again."""
        course.state, course.started = StepState.WAITING, None
        self._save(course)

    async def _done_within(self, future: asyncio.Future[None], limit: timedelta) -> bool:
        timer = asyncio.ensure_future(self._clock.sleep(limit))
        try:
            await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return future.done()

    # --- the act and after -------------------------------------------------------------------

    async def _act(self, course: Course, action: Action) -> acting.Ran:
        """Call `run`. Nothing stands between the durable intent and this call."""
        if course.request.disruptive:
            self._report(course, StepState.RUNNING)
        course.acting = asyncio.get_running_loop().create_future()
        try:
            ran = await acting.run(action, course.request, self._site, self._workers, self._guard)
            if ran.result.state is ResultState.DONE:
                course.result, course.proving = ran.result, self._clock.now()
                course.state = StepState.PROVING
                self._save(course)
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
        self._save(course)
        pause = RETRIES[course.attempts - 1]
        self._report(course, StepState.WAITING, f"tries again in {format_duration(pause)}: {result.why}")
        await self._clock.sleep(pause)
        return None

    async def _judge(self, course: Course, action: Action, result: Result) -> End:
        if result.state is ResultState.FAILED:
            return End(StepState.FAILED, result.why, result.facts)
        if result.state is ResultState.SKIPPED:
            return End(StepState.SKIPPED, result.why, result.facts)
        if not action.proves:
            return End(StepState.PROVED, result.why, result.facts)
        self._report(course, StepState.PROVING, result.why, result.facts)
        return await self._prove(course, action, result)

    async def _take_up_proof(self, course: Course, action: Action) -> End:
        """After a restart of the agent or the host: what ran is never run again, it is proved."""
        if course.result is None:
            course.result = course.interrupted()
        if course.proving is None:
            course.proving = self._clock.now()
        if not action.proves:
            if course.result.facts.get("interrupted"):
                return End(StepState.FAILED, "interrupted, and whether it was done cannot be told")
            return End(StepState.PROVED, course.result.why, course.result.facts)
        course.state = StepState.PROVING
        self._save(course)
        self._report(course, StepState.PROVING, "the agent was interrupted; it looks whether the act helped")
        return await self._prove(course, action, course.result, taken_up=True)

    async def _prove(self, course: Course, action: Action, result: Result, *, taken_up: bool = False) -> End:
        request, began = course.request, course.proving or self._clock.now()
        limit = await acting.proof_time(action, request, self._site, self._workers, self._guard)
        now, last = self._clock.now(), ""
        # While the agent was away nobody looked, so at least half of the time is left to look now.
        spent = min(now.since(began), limit / 2) if taken_up else now.since(began)
        while True:
            left = limit - spent - self._clock.now().since(now)
            if left <= timedelta():
                why = f"not proved within {format_duration(limit)}" + (f": {last}" if last else "")
                return End(StepState.FAILED, why, result.facts)
            proof = await acting.prove(action, request, result, self._site, self._workers, left, self._guard)
            if proof.state is not ProofState.NOT_YET:
                return self._proved(course, result, proof)
            last = proof.why or last
            await self._clock.sleep(min(max(action.proof_every, PROVE_AT_MOST_EVERY), left))

    def _proved(self, course: Course, result: Result, proof: Proof) -> End:
        facts = {**result.facts, **proof.facts}
        if proof.state is ProofState.DISPROVED:
            return End(StepState.FAILED, proof.why, facts)
        request, began = course.request, course.started
        if request.service is not None and request.disruptive:
            self._admission.healthy(request.service)
            # Where the manager had done it before we came, when it began is not ours to say.
            if began is not None and not (request.drill or result.facts.get("by_manager")):
                self._proofs[request.action, request.service] = (began, request)
        return End(StepState.PROVED, proof.why or result.why, facts)

    # --- small things ------------------------------------------------------------------------

    def _tripped(self, why: str) -> None:
        self.poke()
        if self._on_tripped is not None:
            self._on_tripped(why)

    def _wait_for(self, course: Course, reason: str) -> None:
        """Say once that it waits, and for what."""
        if reason in course.reasons or len(course.reasons) >= MAX_REASONS:
            return
        course.reasons.add(reason)
        course.why = reason
        if course.state is StepState.WAITING:
            self._save(course)
        self._report(course, StepState.WAITING, reason)

    def _report(self, course: Course, state: StepState, why: str = "", facts: Mapping[str, Any] = EMPTY) -> None:
        self._report_to(StepReport(request=course.request.id, state=state, why=why, facts=facts))

    def _save(self, course: Course) -> None:
        self._store.commit(course.row())

    async def _pause(self, course: Course, duration: timedelta) -> None:
        """Wait, or until something has changed for this request."""
        timer = asyncio.ensure_future(self._clock.sleep(duration))
        waker = asyncio.ensure_future(course.wake.wait())
        try:
            await asyncio.wait({timer, waker}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waker.cancel()


class _Given(Exception):
    """A request ends before its act."""

    def __init__(self, end: End) -> None:
        super().__init__(end.why)
        self.end = end
