"""The engine: (state, input, now) → changes. Findings open incidents, incidents climb ladders.

It is synchronous, pure and in memory; only the loop calls it. What must survive a restart leaves as
changes and comes back through the constructor. It never raises on what detectors state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from . import closing
from .case import CASE, Case, Turn
from .changes import (
    Acked,
    ActionTraits,
    Change,
    FindingSeen,
    Input,
    PoliciesReplaced,
    Remembered,
    StepReport,
    Tick,
)
from .counting import Count, StepLimits
from .intake import ANNOUNCE_BURST, Intake, may_act
from .ladder import Ladder
from .matching import PolicyIndex
from .model import EMPTY, Finding, Incident, IncidentState, Instant, Request, StepState
from .policy import Policy
from .reloading import obey, replace_policy
from .resuming import number_in, restore

__all__ = ["Engine", "may_act"]


class Engine:
    """All open incidents, and what happens next.

    `actions` says of each loaded action what the engine must know. `incidents`, `requests` (each
    with its state and last sentence; of open incidents the ended ones too) and `memory` (what left
    as `Remembered`) are what the store read back; without them the engine starts empty.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        actions: Mapping[str, ActionTraits],
        *,
        host: str = "",
        incidents: Iterable[Incident] = (),
        requests: Sequence[tuple[Request, StepState, str]] = (),
        memory: Mapping[str, Any] = EMPTY,
    ) -> None:
        index = PolicyIndex(policies)
        self._cases, self._left = restore(incidents, requests, memory, index)
        self._limits = StepLimits(memory)
        self._ladder = Ladder(actions, host, self._limits)
        self._intake = Intake(index, self._cases, self._ladder, memory)
        self._settled = False

    @property
    def incidents(self) -> Mapping[int, Incident]:
        """Every incident in memory by number: the open ones, and those that ended minutes ago."""
        return MappingProxyType({case.incident.id: case.incident for case in self._cases})

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies in reading order."""
        return self._intake.index.policies

    @property
    def raised(self) -> frozenset[tuple[str, str, str]]:
        """(kind, subject, aspect) of every fault that an open incident holds to be there.

        A probe that starts anew needs it: what it does not find any more has cleared meanwhile.
        """
        open_ = (case for case in self._cases if not case.incident.state.ended and not case.incident.drill)
        return frozenset(
            (kind, case.incident.subject, key[len(case.incident.subject) + 1 :])
            for case in open_
            for kind, key in case.raised
        )

    @property
    def refused(self) -> int:
        """How many findings opened no incident because a thousand were open already."""
        return self._intake.refused

    def policy_for(self, finding: Finding) -> Policy | None:
        """Return the policy that takes `finding`, counting aside."""
        return self._intake.index.find(finding)

    def counts(self, now: Instant) -> tuple[Count, ...]:
        """Return the `count:` buckets that hold something but are not full."""
        return self._intake.buckets.counts(now)

    def apply(self, event: Input, now: Instant) -> tuple[Change, ...]:
        """Take one input and return what changes, in order. To be committed together."""
        turn = Turn(now)
        if not self._settled:
            self._settle(turn)
        match event:
            case FindingSeen(finding=finding):
                if finding.raised:
                    self._intake.found(finding, turn)
                else:
                    self._intake.cleared(finding, turn)
            case StepReport():
                self._report(event, turn)
            case Tick():
                self._tick(turn)
            case Acked():
                self._ack(event, turn)
            case PoliciesReplaced(policies=policies):
                self._intake.index = PolicyIndex(policies)
                for one in self._cases:
                    replace_policy(one, self._intake.index.named(one.incident.policy), self._ladder, turn)
        turn.remember()
        return tuple(turn.changes)

    def _report(self, report: StepReport, turn: Turn) -> None:
        head = report.request.partition(".")[0]
        case = self._cases.numbered(number_in(head))
        if case is not None:
            self._ladder.report(case, report, turn)

    def _ack(self, ack: Acked, turn: Turn) -> None:
        case = self._cases.numbered(ack.incident)
        if case is None or case.incident.state.ended or case.incident.acked_by is not None:
            return
        case.change(acked_by=ack.by)
        case.active = turn.now
        self._ladder.drop(case, f"{ack.by} took over", turn, all_=True, again=False)
        turn.note(case, "acked", f"{ack.by} took over")

    def _tick(self, turn: Turn) -> None:
        for case in self._cases:
            if case.incident.state.ended:
                self._leave(case, turn)
            else:
                self._pass_time(case, turn)
        self._intake.buckets.flush(turn.now, turn.changes)
        self._limits.prune(turn.now, turn.changes)
        self._intake.bursts.prune(turn.now)

    def _pass_time(self, case: Case, turn: Turn) -> None:
        now = turn.now
        self._ladder.due(case, turn)
        end = closing.verdict(case, now)
        if end is not None and end[0] is IncidentState.RESOLVED:
            closing.resolve(case, end[1], self._cases, turn)
        elif end is not None:
            case.change(state=end[0], reminded=now)
            turn.note(case, "unresolved", end[1], tell=True)
        elif closing.reminds(case, now):
            case.change(reminded=now)
            turn.note(case, "reminder", case.incident.why or "still open", tell=True)
        elif case.dirty and (case.announced is None or now.since(case.announced) >= ANNOUNCE_BURST):
            turn.note(case, "finding")

    def _leave(self, case: Case, turn: Turn) -> None:
        """An ended incident leaves the memory when nothing can refer to it any more."""
        inhibited = case.incident.state is IncidentState.INHIBITED
        if inhibited and (case.open_requests or self._cases.holds(case)):
            return
        self._cases.close(case)
        if closing.leaves(case, turn.now):
            self._cases.remove(case)
            turn.touched.pop(case.incident.id, None)
            if case.remembered is not None:
                turn.changes.append(Remembered(key=f"{CASE}{case.incident.id}", value=None))

    def _settle(self, turn: Turn) -> None:
        """Before the first input after a start: what ended or changed while we were away."""
        self._settled = True
        for report in self._left.reports:
            self._report(report, turn)
        for case in self._left.lost:
            if case.busy and not case.open_requests:
                self._ladder.lose(case, turn)
        turn.changes.extend(self._left.strays)
        for case in self._cases:
            obey(case, self._ladder, turn)
