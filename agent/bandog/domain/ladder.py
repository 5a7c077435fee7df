"""Climbing: how a step begins, how its requests end it, and which step follows (DESIGN section 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from .case import Asked, Case, Turn, describe
from .changes import ActionTraits, RequestDropped, RequestMade, StepReport
from .counting import StepLimits
from .model import EMPTY, IncidentState, Request, StepState
from .placeholders import expand
from .policy import Step, allows, format_duration

_UNKNOWN_ACTION = ActionTraits()
_STARTED = {
    StepState.WAITING: "step-waiting",
    StepState.RUNNING: "step-started",
    StepState.PROVING: "step-proving",
}


def aggregate(ends: Iterable[StepState]) -> StepState:
    """Return how a step ended whose requests ended so: the worst end wins, then any proof."""
    states = set(ends)
    for state in (StepState.FAILED, StepState.EXHAUSTED, StepState.WOULD, StepState.PROVED):
        if state in states:
            return state
    return StepState.SKIPPED


class Ladder:
    """Begins, follows and ends the steps of cases."""

    def __init__(self, actions: Mapping[str, ActionTraits], host: str, limits: StepLimits) -> None:
        self._actions = actions
        self._host = host
        self._limits = limits

    def traits(self, action: str) -> ActionTraits:
        """Return what is known of an action; one that is not loaded counts as disruptive."""
        return self._actions.get(action, _UNKNOWN_ACTION)

    def advance(self, case: Case, turn: Turn) -> None:
        """A finding asks for the next step (or for the current one, if it was never begun)."""
        if case.busy or case.open_requests or not case.may_climb:
            return  # (A request may outlive its step: it had begun before a reload took the step away.)
        step = case.incident.step
        index = max(step, 0) if case.again else step + 1
        if case.incident.state is IncidentState.UNRESOLVED:
            case.change(state=IncidentState.OPEN, reminded=None)
        self._climb(case, index, turn)

    def due(self, case: Case, turn: Turn) -> None:
        """Begin a step that waited for its `after:`, if the time has come."""
        if not case.delayed:
            return
        index = case.incident.step
        if self._delay(case, case.policy.steps[index], turn) <= timedelta(0) and self._start(case, turn):
            self._climb(case, index + 1, turn)

    def report(self, case: Case, report: StepReport, turn: Turn) -> None:
        """Take what the executor says about a request of the current step; anything else is old news."""
        asked = case.asked.get(report.request)
        if asked is None or case.incident.state is IncidentState.RESOLVED:
            return
        if asked.dropped and report.state not in (StepState.WAITING, StepState.SKIPPED):
            asked.dropped = False  # it had begun before it could be taken back: the world decides
        elif asked.state.ended:
            return
        news = (report.state, report.why) != (asked.state, asked.why)
        asked.state, asked.why, asked.facts = report.state, report.why, report.facts
        if not report.state.ended:
            if news:
                self._progress(case, asked, turn)
        elif not case.open_requests:
            self._finish(case, turn)
        else:
            turn.touched[case.incident.id] = case

    def drop(self, case: Case, why: str, turn: Turn, *, all_: bool, again: bool) -> None:
        """Take back what has not begun: a step that waits for its time, and requests that wait.

        `all_` includes those that are not disruptive. `again` lets a later finding begin the step
        anew. Requests that run go on to their end.
        """
        if not case.busy:
            return
        for name, asked in case.asked.items():
            if asked.state is StepState.WAITING and (all_ or asked.request.disruptive):
                asked.state, asked.why, asked.dropped = StepState.SKIPPED, why, True
                turn.changes.append(RequestDropped(request=name, why=why))
        turn.touched[case.incident.id] = case
        if case.open_requests:
            return
        if any(not asked.dropped for asked in case.asked.values()):
            self._finish(case, turn)
            return
        step = self._step(case)
        if step is not None and case.asked:
            self._give_back(case, step, turn)
        case.again = again
        action = step.do if step is not None else None
        self._end(case, StepState.SKIPPED, f"{action or 'the step'} not begun: {why}", turn, tell=False)

    def lose(self, case: Case, turn: Turn) -> None:
        """After a restart the step's requests are not in the store: end it, and climb no further."""
        self._end(case, StepState.FAILED, "the record of its request is lost", turn, tell=True)

    # --- inside ----------------------------------------------------------------------------------

    def _climb(self, case: Case, index: int, turn: Turn) -> None:
        while index < len(case.policy.steps):
            if not self._begin(case, index, turn):
                return
            index += 1
        self._used_up(case, turn)

    def _begin(self, case: Case, index: int, turn: Turn) -> bool:
        """Begin a step; return True when it has ended at once and the next one is due."""
        step = case.policy.steps[index]
        case.asked = {}
        case.again = False
        case.change(step=index, step_state=StepState.WAITING)
        delay = self._delay(case, step, turn)
        if delay > timedelta(0):
            if not case.incident.raised:
                case.again = True
                self._end(case, StepState.SKIPPED, f"{step.do} not begun: the fault has cleared", turn)
                return False
            why = f"{step.do} follows in {format_duration(delay)} if the fault is still there"
            turn.note(case, "step-waiting", why, action=step.do)
            return False
        return self._start(case, turn)

    def _delay(self, case: Case, step: Step, turn: Turn) -> timedelta:
        if step.after is None:
            return timedelta(0)
        opened, raised = turn.now.since(case.incident.opened), turn.now.since(case.raised_at)
        return step.after - min(opened, raised)

    def _start(self, case: Case, turn: Turn) -> bool:
        step = case.policy.steps[case.incident.step]
        if step.do not in self._actions:
            self._end(
                case, StepState.SKIPPED, f"{step.do} skipped: not loaded on this host (bandog plugins says why)", turn
            )
            return True
        traits = self._actions[step.do]
        if traits.disruptive and not case.acting:
            case.again = True
            why = f"{step.do} skipped: what was seen is not live, and bandog never acts on it"
            self._end(case, StepState.SKIPPED, why, turn)
            return False
        if traits.disruptive and not case.incident.raised and not case.acted:
            case.again = True
            self._end(case, StepState.SKIPPED, f"{step.do} not begun: the fault has cleared", turn, tell=False)
            return False
        services = case.incident.services if traits.per_service else (None,)
        if not services:
            self._end(case, StepState.SKIPPED, f"{step.do} skipped: no service of ours uses it", turn)
            return True
        if step.limit is not None:
            if self._limits.used(self._limit_key(case, step), step.limit, turn.now) >= step.limit.count:
                why = f"{step.do} not done: its limit of {step.limit} is used up"
                self._end(case, StepState.EXHAUSTED, why, turn)
                return True
            self._limits.use(self._limit_key(case, step), step.limit, turn.now, turn.changes)
        requests = [self._request(case, step, traits, service, turn) for service in services]
        what = ", ".join(describe(step.do, service) for service in services)
        turn.note(case, "step-waiting", f"{what} asked for", action=step.do)
        turn.changes.extend(RequestMade(request=request) for request in requests)
        return False

    def _request(self, case: Case, step: Step, traits: ActionTraits, service: str | None, turn: Turn) -> Request:
        incident = case.incident
        case.made += 1
        names = {
            **incident.facts,
            "subject": incident.subject,
            "kind": incident.kind,
            "host": self._host,
            "service": service or next(iter(incident.services), ""),
            "incident": incident.id,
        }
        request = Request(
            id=f"{incident.id}.{case.made}",
            incident=incident.id,
            policy=incident.policy,
            step=incident.step,
            action=step.do,
            subject=incident.subject,
            kind=incident.kind,
            service=service,
            with_={name: expand(value, names) for name, value in step.with_.items()},
            facts=incident.facts,
            found_at=case.found_at,
            made_at=turn.now,
            live=case.acting,
            drill=incident.drill,
            disruptive=traits.disruptive,
            mode="enforce" if allows(case.policy.mode, step.do) else "observe",
        )
        case.asked[request.id] = Asked(request)
        return request

    def _progress(self, case: Case, asked: Asked, turn: Turn) -> None:
        states = {other.state for other in case.open_requests}
        for state in (StepState.RUNNING, StepState.PROVING, StepState.WAITING):
            if state in states:
                case.change(step_state=state)
                break
        request = asked.request
        running = asked.state is StepState.RUNNING
        if running and request.disruptive:
            case.acted = True
        words = {
            StepState.WAITING: f"{asked.what} waits" + (f": {asked.why}" if asked.why else ""),
            StepState.RUNNING: asked.why or f"{asked.what} started",
            StepState.PROVING: asked.why or f"{asked.what} done, waiting for the proof",
        }
        turn.note(
            case,
            _STARTED[asked.state],
            words[asked.state],
            tell=running and request.disruptive,
            action=request.action,
            facts=asked.facts,
        )

    def _finish(self, case: Case, turn: Turn) -> None:
        """All requests of the current step have ended: so has the step."""
        done = [asked for asked in case.asked.values() if not asked.dropped] or list(case.asked.values())
        action = done[0].request.action
        traits = self.traits(action)
        end = aggregate(asked.state for asked in done)
        if end in (StepState.SKIPPED, StepState.WOULD):
            step = self._step(case)
            if step is not None:
                self._give_back(case, step, turn)
        if end is StepState.PROVED and traits.proves:
            case.change(proved_step=case.incident.step)
        facts = done[0].facts if len(done) == 1 else {a.request.service or a.request.id: a.facts for a in done}
        why = "; ".join(_sentence(asked, proves=traits.proves) for asked in done)
        self._end(case, end, why, turn, action=action, facts=facts, tell=done[0].request.disruptive)
        waits = traits.proves and end in (StepState.PROVED, StepState.WOULD)
        if case.may_climb and not waits:
            self._climb(case, case.incident.step + 1, turn)

    def _end(
        self,
        case: Case,
        end: StepState,
        why: str,
        turn: Turn,
        *,
        action: str | None = None,
        facts: Mapping[str, object] = EMPTY,
        tell: bool | None = None,
    ) -> None:
        step = self._step(case)
        action = action or (step.do if step is not None else None)
        if tell is None:
            tell = action is None or self.traits(action).disruptive
        case.change(step_state=end)
        case.step_ended = case.active = turn.now
        turn.note(case, "step-ended", why, tell=tell, action=action, end=end, facts=facts)

    def _used_up(self, case: Case, turn: Turn) -> None:
        """A further step is wanted and there is none."""
        incident = case.incident
        tried = any(self.traits(step.do).proves for step in case.policy.steps)
        if case.policy.resolve != "proved" or not tried or incident.state is IncidentState.STUCK:
            return
        case.change(state=IncidentState.STUCK, reminded=turn.now)
        last = incident.why.rstrip(".")
        why = "the last step of the ladder is behind us and the fault is not; a person has to look"
        step = self._step(case)
        paged = step is not None and step.do == "notify" and step.with_.get("urgent") is True
        done = incident.step_state is StepState.PROVED
        # The ladder's own last page has just gone out: one fault, one page.
        turn.note(case, "stuck", f"{why} ({last})" if last else why, tell=True, urgent=not (paged and done))

    def _step(self, case: Case) -> Step | None:
        index = case.incident.step
        return case.policy.steps[index] if 0 <= index < len(case.policy.steps) else None

    def _limit_key(self, case: Case, step: Step) -> str:
        """The same rung of the same (policy, subject), wherever the ladder's other rungs move to."""
        index = case.incident.step
        nth = sum(1 for other in case.policy.steps[:index] if other.do == step.do)
        drill = "drill" if case.incident.drill else ""
        return f"{case.incident.policy}|{step.do}#{nth}|{drill}|{case.incident.subject}"

    def _give_back(self, case: Case, step: Step, turn: Turn) -> None:
        if step.limit is not None:
            self._limits.give_back(self._limit_key(case, step), turn.changes)


def _sentence(asked: Asked, *, proves: bool) -> str:
    words = {
        StepState.PROVED: "proved" if proves else "done",
        StepState.FAILED: "failed",
        StepState.SKIPPED: "skipped",
        StepState.EXHAUSTED: "not done",
        StepState.WOULD: "only observed",
    }
    if asked.state is StepState.WOULD:
        return asked.why or f"would have run {asked.what}"
    return f"{asked.what} {words[asked.state]}" + (f": {asked.why}" if asked.why else "")
