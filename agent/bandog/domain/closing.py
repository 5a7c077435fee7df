"""When an incident ends, when it is called unresolved, and when people are reminded of it."""

from __future__ import annotations

from datetime import timedelta

from .case import Case, Turn
from .cases import Cases
from .model import IncidentState, Instant
from .policy import format_duration

_REMIND_EVERY = timedelta(days=1)
_KEPT = timedelta(minutes=10)
_PAGED = (IncidentState.STUCK, IncidentState.UNRESOLVED)


def verdict(case: Case, now: Instant) -> tuple[IncidentState, str] | None:
    """Return the state that passing time gives an incident, and why; None while it stays as it is."""
    incident, policy = case.incident, case.policy
    if incident.state.ended or case.busy or now.since(case.active) < policy.quiet:
        return None
    quiet = f"quiet for {format_duration(policy.quiet)}"
    if incident.acked_by is not None:
        return IncidentState.RESOLVED, f"{quiet} since {incident.acked_by} took over"
    if incident.drill:
        return IncidentState.RESOLVED, f"{quiet}: the drill is over"
    if incident.state is not IncidentState.OPEN:
        return None
    if not case.solid:
        return IncidentState.RESOLVED, f"{quiet}; it was only ever seen inside another message"
    if policy.resolve == "quiet":
        return IncidentState.RESOLVED, quiet
    if policy.resolve == "cleared":
        return None if incident.raised else (IncidentState.RESOLVED, f"cleared, and {quiet}")
    if incident.proved_step == incident.step >= 0:
        action = policy.steps[incident.step].do if incident.step < len(policy.steps) else "the last step"
        return IncidentState.RESOLVED, f"{action} proved, and {quiet}"
    if not incident.raised:
        return IncidentState.RESOLVED, f"cleared, and {quiet}"
    return IncidentState.UNRESOLVED, f"{quiet}, but nothing has proved that it is over"


def clears(case: Case) -> bool:
    """True when an explicit clearing of all that was raised ends the incident at once."""
    return case.incident.state in _PAGED and not case.incident.raised


def reminds(case: Case, now: Instant) -> bool:
    """True when people shall hear of a stuck or unresolved incident again."""
    incident = case.incident
    if incident.state not in _PAGED or incident.acked_by is not None or incident.drill:
        return False
    return incident.reminded is None or now.since(incident.reminded) >= _REMIND_EVERY


def leaves(case: Case, now: Instant) -> bool:
    """True when an ended incident may leave the memory."""
    ended = case.incident.ended
    return case.incident.state.ended and (ended is None or now.since(ended) >= _KEPT)


def resolve(case: Case, why: str, cases: Cases, turn: Turn) -> None:
    """End an incident; the next finding of its policy and subject opens a new one."""
    case.change(state=IncidentState.RESOLVED, ended=turn.now)
    cases.close(case)
    turn.note(case, "resolved", why, tell=True)
