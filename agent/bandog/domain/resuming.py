"""Going on after a restart: cases from what the store kept, and what has to be put right first.

A request is never made anew for one that exists, and nothing is guessed: what the executor ended
after our last commit is taken from the store, what cannot be found ends its step without climbing,
and what was taken back before the crash is taken back again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .case import CASE, MARKS, Asked, Case
from .cases import Cases
from .changes import RequestDropped, StepReport
from .codec import from_json
from .matching import PolicyIndex
from .model import Incident, IncidentState, Instant, Request, StepState
from .policy import Match, Policy

Kept = tuple[Request, StepState, str]
_NOTHING = Match(kinds=())


@dataclass(slots=True)
class Leftovers:
    """What the first input after a start has to settle before anything else."""

    reports: list[StepReport] = field(default_factory=list)
    strays: list[RequestDropped] = field(default_factory=list)
    lost: list[Case] = field(default_factory=list)


def restore(
    incidents: Iterable[Incident],
    requests: Sequence[Kept],
    memory: Mapping[str, Any],
    index: PolicyIndex,
) -> tuple[Cases, Leftovers]:
    """Rebuild the cases of all incidents that have not ended, and say what is left to settle."""
    by_incident: dict[int, dict[str, Kept]] = {}
    for kept in requests:
        by_incident.setdefault(kept[0].incident, {})[kept[0].id] = kept
    cases, left = Cases(), Leftovers()
    for incident in incidents:
        if incident.state is not IncidentState.RESOLVED:
            policy = index.named(incident.policy)
            own = by_incident.get(incident.id, {})
            case = _case(incident, policy, memory.get(f"{CASE}{incident.id}"), own, left)
            if cases.numbered(incident.id) is None:
                cases.keep(case)
    for request, state, _ in requests:
        kept_case = cases.numbered(request.incident)
        asked = kept_case.asked.get(request.id) if kept_case is not None else None
        if state is StepState.WAITING and (asked is None or asked.state.ended):
            left.strays.append(RequestDropped(request=request.id, why="it is not wanted any more"))
    return cases, left


def _case(
    incident: Incident, policy: Policy | None, memory: Any, requests: Mapping[str, Kept], left: Leftovers
) -> Case:
    data = memory if isinstance(memory, Mapping) else {}
    marks = data.get("marks")
    case = Case(
        incident=incident,
        policy=policy or Policy(name=incident.policy, match=_NOTHING),
        active=_instant(data.get("active")) or incident.last,
        raised_at=_instant(data.get("raised_at")) or incident.opened,
        found_at=_instant(data.get("found_at")) or incident.last,
        step_ended=_instant(data.get("step_ended")),
        raised=_raised(data.get("raised"), incident),
        orphan=policy is None,
        remembered=data or None,
    )
    for name in MARKS:
        setattr(case, name, isinstance(marks, list) and name in marks)
    if not isinstance(marks, list):
        case.solid = case.told = True
    made = data.get("made")
    case.made = max([made if isinstance(made, int) else 0, *(number_in(name.rpartition(".")[2]) for name in requests)])
    _ask_again(case, data.get("asked"), requests, left)
    return case


def _ask_again(case: Case, memory: Any, requests: Mapping[str, Kept], left: Leftovers) -> None:
    """Put the current step's requests back as they stood, and note what has changed since."""
    if not case.busy:
        return
    states = memory if isinstance(memory, Mapping) else None
    missing = False
    for name in states if states is not None else requests:
        request, state, why = requests.get(name, (None, StepState.FAILED, ""))
        if request is None:
            missing = missing or not _stood(states, name, state)[0].ended
            continue
        if states is None and request.step != case.incident.step:
            continue
        then, dropped = _stood(states, name, StepState.WAITING)
        case.asked[name] = Asked(request, then, "" if state.ended and not then.ended else why, dropped=dropped)
        if state.ended and not then.ended:
            left.reports.append(StepReport(request=name, state=state, why=why))
    step = case.incident.step
    steps = case.policy.steps
    delayed = not states and not case.asked and step < len(steps) and steps[step].after is not None
    if not case.open_requests and (missing or not delayed):
        left.lost.append(case)


def _stood(states: Mapping[str, Any] | None, name: str, fallback: StepState) -> tuple[StepState, bool]:
    try:
        state, _, dropped = (states or {})[name]
        return StepState(state), bool(dropped)
    except (TypeError, ValueError, KeyError):
        return fallback, False


def number_in(text: str) -> int:
    """Return the number that a part of a request's id is, or 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _instant(data: Any) -> Instant | None:
    try:
        return from_json(Instant, data) if data is not None else None
    except (TypeError, ValueError, KeyError, OverflowError):
        return None


def _raised(data: Any, incident: Incident) -> set[tuple[str, str]]:
    try:
        return {(str(kind), str(subject)) for kind, subject in data}
    except (TypeError, ValueError):
        return {(incident.kind, incident.subject)} if incident.raised else set()
