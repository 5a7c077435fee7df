"""What `bandog status` tells: the whole state of the agent as JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..domain.codec import to_json
from ..domain.model import Incident, IncidentState, Instant, StepState
from ..services import overrides
from ..services.registry import Registry

PLACES = {IncidentState.STUCK: 0, IncidentState.OPEN: 1, IncidentState.UNRESOLVED: 2}


ONLY_OBSERVED = "its last step was only observed; it waits for its next finding, which begins the step after that"


def waits(incident: Incident) -> str:
    """Return what an incident waits for whose step was only observed, "" for any other.

    Neither a change of mode nor `bandog rearm` makes up for what was not done: the fault may be over.
    """
    halted = incident.state in (IncidentState.OPEN, IncidentState.UNRESOLVED) and incident.step_state is StepState.WOULD
    return ONLY_OBSERVED if halted and incident.acked_by is None and not incident.drill else ""


def incident_line(incident: Incident) -> dict[str, Any]:
    """One incident in a list."""
    return {
        "id": incident.id,
        "policy": incident.policy,
        "subject": incident.subject,
        "kind": incident.kind,
        "severity": incident.severity.value,
        "state": incident.state.value,
        "step_state": incident.step_state.value,
        "findings": incident.findings,
        "services": list(incident.services),
        "opened": to_json(incident.opened.utc),
        "last": to_json(incident.last.utc),
        "drill": incident.drill,
        "acked_by": incident.acked_by,
        "why": incident.why,
        "waits": waits(incident),
    }


def open_incidents(incidents: Iterable[Incident]) -> list[dict[str, Any]]:
    """Every incident that has not ended, the worst first."""
    alive = [one for one in incidents if not one.state.ended]
    alive.sort(key=lambda one: (PLACES.get(one.state, 3), -one.severity.rank, one.id))
    return [incident_line(one) for one in alive]


def service_lines(registry: Registry, states: Mapping[str, str], run: Path) -> list[dict[str, Any]]:
    """Every service with its unit and, where known, the unit's state; `override` is what a relaunch put in force."""
    return [
        {
            "name": one.name,
            "unit": one.unit,
            "state": states.get(one.name, "unknown"),
            "gpus": to_json(one.gpus),
            "override": str(overrides.in_force(run, one.unit) or ""),
        }
        for one in registry
    ]


def source_line(
    name: str, state: str, why: str = "", counts: Mapping[str, int] | None = None, read: Instant | None = None
) -> dict[str, Any]:
    """One source: `state` is watched or not watched, with the reason."""
    return {
        "name": name,
        "state": state,
        "why": why,
        "counts": dict(counts or {}),
        "read": to_json(read.utc) if read is not None else None,
    }


def hold_lines(holds: Sequence[Any]) -> list[dict[str, Any]]:
    """Every pause with its author, reason and end."""
    return [
        {
            "target": one.target,
            "by": one.by,
            "reason": one.reason,
            "until": to_json(one.until.utc) if one.until is not None else None,
        }
        for one in holds
    ]
