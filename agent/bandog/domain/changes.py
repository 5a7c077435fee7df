"""What goes into the engine and what comes out: the inputs and the changes, as values.

Findings go down, changes come out, results go in at the top again (DESIGN section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .model import EMPTY, Finding, Incident, Request, StepState
from .policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTraits:
    """What the engine must know of an action: it never sees the action itself."""

    disruptive: bool = True
    per_service: bool = False
    proves: bool = True


# --- inputs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSeen:
    """A detector or probe stated a fact; `finding.services` is already located."""

    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The executor reports how a request stands: WAITING (a gate holds it), RUNNING, PROVING or an end."""

    request: str
    state: StepState
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A second has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """A person takes over: no further step, no reminder; it resolves by quiet time."""

    incident: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesReplaced:
    """A reload: incidents whose policy has gone stay open without further steps."""

    policies: tuple[Policy, ...]


Input: TypeAlias = FindingSeen | StepReport | Tick | Acked | PoliciesReplaced


# --- changes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChanged:
    """An incident is new or different. `what` is the timeline's word for it.

    `what`: opened, finding, joined, step-waiting, step-started, step-proving, step-ended, cleared,
    stuck, reminder, acked, inhibited, unresolved, resolved, policy-changed. `tell` says whether
    people hear of it, `urgent` that it is a page. `action` names the step's action where it is
    about one, and `end` how a step ended.
    """

    incident: Incident
    what: str
    why: str = ""
    tell: bool = False
    urgent: bool = False
    notify: tuple[str, ...] = ()
    action: str | None = None
    end: StepState | None = None
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    finding: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMade:
    """A step begins: the executor shall take this request."""

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped:
    """A request that has not run yet is not wanted any more (joined, acked, cleared)."""

    request: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A small value that must survive a restart (buckets, limits, the last incident number).

    `value` is JSON; None forgets the key.
    """

    key: str
    value: Any


Change: TypeAlias = IncidentChanged | RequestMade | RequestDropped | Remembered
