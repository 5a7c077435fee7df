"""Whether an act has helped: its result is judged, and what it changed is looked at until that is certain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ..domain.model import Instant, Proof, ProofState, Request, Result, ResultState, StepState
from ..domain.policy import format_duration
from ..host.site import Clock, Site
from ..plugin import Action
from . import acting
from .course import Course, End
from .guard import Guard
from .progress import Progress
from .workers import Workers

PROVE_AT_MOST_EVERY = timedelta(milliseconds=100)


class Prover:
    """Brings requests that have run to their end. On the loop only; `healthy` hears of a service that was proved."""

    def __init__(
        self,
        *,
        site: Site,
        clock: Clock,
        workers: Workers,
        guard: Guard | None,
        progress: Progress,
        healthy: Callable[[str], None],
    ) -> None:
        self._site = site
        self._clock = clock
        self._workers = workers
        self._guard = guard
        self._progress = progress
        self._healthy = healthy
        self._proofs: dict[tuple[str, str], tuple[Instant, Request]] = {}

    def answered(self, request: Request) -> End | None:
        """An act that began after this fault was seen and is proved answers it too, and costs no budget
        again: a fault of the links strikes eight GPUs of one service at once."""
        began, other = self._proofs.get((request.action, request.service or ""), (None, request))
        if began is None or other.with_ != request.with_ or request.drill:
            return None
        if began.boot_id != request.found_at.boot_id or began.since(request.found_at) <= timedelta():
            return None
        what = f"{other.action} of {other.service} for incident #{other.incident}"
        return End(StepState.PROVED, f"{what} came after it was seen, and is proved")

    async def judge(self, course: Course, action: Action, result: Result) -> End:
        """Return the end of a request whose `run` has come back, after its proof if it has one."""
        if result.state is ResultState.FAILED:
            return End(StepState.FAILED, result.why, result.facts)
        if result.state is ResultState.SKIPPED:
            return End(StepState.SKIPPED, result.why, result.facts)
        if not action.proves:
            return End(StepState.PROVED, result.why, result.facts)
        self._progress.report(course, StepState.PROVING, result.why, result.facts)
        return await self._prove(course, action, result)

    async def take_up(self, course: Course, action: Action) -> End:
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
        self._progress.save(course)
        self._progress.report(course, StepState.PROVING, "the agent was interrupted; it looks whether the act helped")
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
            self._healthy(request.service)
            # Where the manager had done it before we came, when it began is not ours to say.
            if began is not None and not (request.drill or result.facts.get("by_manager")):
                self._proofs[request.action, request.service] = (began, request)
        return End(StepState.PROVED, proof.why or result.why, facts)
