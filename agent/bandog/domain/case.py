"""What the engine knows of one incident beyond what is told: its rungs' requests and its clocks.

A `Case` is the engine's own mutable record; the frozen `Incident` in it is what leaves. What an
incident needs to go on after a restart is kept as one `Remembered` value, `engine.case.<id>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .changes import Change, IncidentChanged, Remembered
from .codec import to_json
from .model import EMPTY, Finding, Incident, IncidentState, Instant, Request, StepState
from .policy import Policy

CASE = "engine.case."


@dataclass(slots=True)
class Asked:
    """One request of the current step and how it stands. `dropped`: taken back before it ran."""

    request: Request
    state: StepState = StepState.WAITING
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    dropped: bool = False

    @property
    def what(self) -> str:
        """The act in words: `restart of qwen`, `evidence`."""
        return describe(self.request.action, self.request.service)


def describe(action: str, service: str | None) -> str:
    """Return an act in words: `restart of qwen`, `evidence`."""
    return f"{action} of {service}" if service else action


@dataclass(slots=True)
class Case:
    """One incident in the engine.

    `active` is when something last happened (a finding, a step's end, an ack): quiet time counts
    from there. `raised_at` is when the fault was last raised anew, `found_at` the time of the
    newest finding that may act. `acting`: some finding may act; `solid`: some finding was not glued;
    `companion`: only effects so far. `again`: the next finding begins the current step, not the one
    after it. `acted`: something disruptive ran. `told`: people have heard of it. `orphan`: its policy has gone.
    """

    incident: Incident
    policy: Policy
    active: Instant
    raised_at: Instant
    found_at: Instant
    step_ended: Instant | None = None
    asked: dict[str, Asked] = field(default_factory=dict)
    made: int = 0
    raised: set[tuple[str, str]] = field(default_factory=set)
    acting: bool = False
    solid: bool = False
    companion: bool = False
    again: bool = False
    acted: bool = False
    told: bool = False
    orphan: bool = False
    announced: Instant | None = None
    dirty: bool = False
    remembered: Mapping[str, Any] | None = None

    @property
    def key(self) -> tuple[str, str, bool]:
        """What makes it this incident: policy, subject, drill."""
        return (self.incident.policy, self.incident.subject, self.incident.drill)

    @property
    def busy(self) -> bool:
        """True while a step is under way or waits for its time."""
        return self.incident.step >= 0 and not self.incident.step_state.ended

    @property
    def delayed(self) -> bool:
        """True while the current step waits for its `after:`."""
        return self.busy and not self.asked

    @property
    def open_requests(self) -> list[Asked]:
        """The requests of the current step that have not ended."""
        return [asked for asked in self.asked.values() if not asked.state.ended]

    @property
    def may_climb(self) -> bool:
        """True when a further step may begin at all."""
        incident = self.incident
        return not (self.orphan or incident.acked_by is not None or incident.state.ended)

    def change(self, **values: Any) -> None:
        """Replace fields of the incident."""
        self.incident = replace(self.incident, **values)

    def memory(self) -> dict[str, Any]:
        """Return what must survive a restart, as JSON."""
        return {
            "made": self.made,
            "active": to_json(self.active),
            "raised_at": to_json(self.raised_at),
            "found_at": to_json(self.found_at),
            "step_ended": to_json(self.step_ended),
            "raised": sorted([kind, subject] for kind, subject in self.raised),
            "marks": [name for name in MARKS if getattr(self, name)],
            "asked": {name: [asked.state.value, asked.why, asked.dropped] for name, asked in self.asked.items()},
        }


MARKS = ("acting", "solid", "companion", "again", "acted", "told")


class Turn:
    """One input's time and the changes it causes, in order."""

    __slots__ = ("changes", "now", "touched")

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.changes: list[Change] = []
        self.touched: dict[int, Case] = {}

    def note(
        self,
        case: Case,
        what: str,
        why: str = "",
        *,
        tell: bool = False,
        urgent: bool = False,
        action: str | None = None,
        end: StepState | None = None,
        facts: Mapping[str, Any] = EMPTY,
        finding: Finding | None = None,
    ) -> None:
        """Record that the incident of `case` changed; `why` becomes its latest sentence."""
        if why and what not in ("finding", "joined"):
            case.change(why=why)
        case.announced, case.dirty = self.now, False
        case.told = case.told or tell
        self.touched[case.incident.id] = case
        self.changes.append(
            IncidentChanged(
                incident=case.incident,
                what=what,
                why=why,
                tell=tell,
                urgent=urgent,
                notify=case.policy.notify,
                action=action,
                end=end,
                facts=facts,
                finding=finding,
            )
        )

    def remember(self) -> None:
        """Add what the touched cases must not forget."""
        for number, case in self.touched.items():
            done = case.incident.state is IncidentState.RESOLVED
            memory = None if done else case.memory()
            if memory != case.remembered:
                case.remembered = memory
                self.changes.append(Remembered(key=f"{CASE}{number}", value=memory))
