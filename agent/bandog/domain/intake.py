"""From finding to incident: coalescing, counting, joining, opening, and clearing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from .case import Case, Turn
from .cases import Cases
from .changes import Remembered
from .closing import clears, resolve
from .coalesce import Burst, Coalescer
from .counting import Buckets, weight_of
from .joining import Joining, covers
from .ladder import Ladder
from .matching import PolicyIndex
from .model import Finding, Incident, IncidentState, Instant
from .policy import Policy
from .subjects import AGENT

LAST = "engine.last_incident"
ACT_WITHIN = timedelta(minutes=5)
ANNOUNCE_BURST = timedelta(seconds=1)
_ANNOUNCE_STATE = timedelta(minutes=1)
# A fork bomb of faults must not fill the memory; a thousand open incidents tell all that people can read.
_MOST_CURRENT = 1000
# Of those that were only ever seen inside another message, which any user can have printed.
_MOST_HEARSAY = 100


def may_act(finding: Finding, now: Instant) -> bool:
    """True when a finding may lead to a disruptive act: live, of this boot, at most 5 min old, not glued."""
    if not finding.live or _glued(finding) or finding.at.boot_id != now.boot_id:
        return False
    return abs(now.boottime - finding.at.boottime) <= ACT_WITHIN


def _glued(finding: Finding) -> bool:
    return bool(finding.facts.get("glued"))


class Intake:
    """Takes findings in. `index` is replaced at a reload."""

    def __init__(self, index: PolicyIndex, cases: Cases, ladder: Ladder, memory: Mapping[str, Any]) -> None:
        self.index = index
        self.buckets = Buckets(memory)
        self.bursts = Coalescer()
        self.refused = 0
        self._cases = cases
        self._ladder = ladder
        self._joining = Joining(cases, ladder)
        last = memory.get(LAST)
        known = (case.incident.id for case in cases)
        self._last = max([last if isinstance(last, int) else 0, *known])

    def found(self, finding: Finding, turn: Turn) -> None:
        """Take a finding that is raised."""
        acting = may_act(finding, turn.now)
        burst, new = self.bursts.place(finding, acting, turn.now)
        if not new and self._again(burst, finding, turn):
            return
        if finding.companion:
            cause = self._joining.cause_of(finding, acting)
            if cause is not None:
                burst.incident = cause.incident.id
                self._grow(cause, finding, turn, own=False)
                turn.note(cause, "joined", f"{finding.kind} came with it", finding=finding)
                return
        policy = self.index.find(finding)
        if policy is None:
            return
        case = self._taken(policy, finding, acting, turn)
        if case is not None:
            burst.incident = case.incident.id
            self._joining.take_companions(case, finding, turn)

    def cleared(self, finding: Finding, turn: Turn) -> None:
        """Take the statement that a fault has gone. Glued text clears nothing."""
        if _glued(finding):
            return
        self.bursts.forget(finding)
        for case in self._cases.about(finding.subject):
            incident = case.incident
            if finding.key() not in case.raised or incident.drill != finding.drill:
                continue
            if not finding.live and finding.at.since(incident.last) < timedelta(0):
                continue  # history: it has been raised again since
            case.raised.discard(finding.key())
            case.change(raised=bool(case.raised))
            turn.note(case, "cleared", f"{finding.kind} on {finding.subject} has cleared", finding=finding)
            if case.raised:
                continue
            if case.delayed or not case.acted:
                self._ladder.drop(case, "the fault has cleared", turn, all_=False, again=True)
            if clears(case):
                resolve(case, "cleared", self._cases, turn)

    def _again(self, burst: Burst, finding: Finding, turn: Turn) -> bool:
        """Count a finding of a known burst; False when it has to be looked at as a new one."""
        if burst.incident is None:
            return "count" not in finding.facts  # one that carries a count still fills its bucket
        case = self._cases.numbered(burst.incident)
        if case is None or case.incident.state is IncidentState.RESOLVED:
            return False
        if finding.companion and not case.companion:
            self._grow(case, finding, turn, own=False)
        else:
            self._grow(case, finding, turn)
        self._announce(case, finding, ANNOUNCE_BURST, turn)
        return True

    def _taken(self, policy: Policy, finding: Finding, acting: bool, turn: Turn) -> Case | None:
        """A policy takes the finding: count it, and open its incident or add to it."""
        rate, full = policy.match.count, True
        if rate is not None and rate.count > 1:
            marks = ("drill" if finding.drill else "") + ("" if acting else "told")
            key = f"{policy.name}|{marks}|{finding.subject}"
            full = self.buckets.fill(key, rate, weight_of(finding), turn.now, turn.changes)
        case = self._cases.current_of(policy.name, finding.subject, finding.drill)
        if case is not None:
            self._add(case, finding, acting, full, turn)
        elif full:
            case = self._open(policy, finding, acting, turn)
        return case

    def _open(self, policy: Policy, finding: Finding, acting: bool, turn: Turn) -> Case | None:
        if self._is_full(finding):
            self.refused += 1
            return None
        self._last += 1
        turn.changes.append(Remembered(key=LAST, value=self._last))
        glued = _glued(finding)
        incident = Incident(
            id=self._last,
            policy=policy.name,
            subject=finding.subject,
            kind=finding.kind,
            severity=finding.severity if glued or policy.severity is None else policy.severity,
            state=IncidentState.OPEN,
            opened=finding.at,
            last=finding.at,
            drill=finding.drill,
            facts=finding.facts,
            services=tuple(dict.fromkeys(finding.services)),
        )
        case = Case(
            incident=incident,
            policy=policy,
            active=turn.now,
            raised_at=finding.at,
            found_at=finding.at,
            raised={finding.key()},
            acting=acting,
            solid=not glued,
            companion=finding.companion,
        )
        self._cases.keep(case)
        text = finding.facts.get("text")
        why = f"{finding.kind} on {finding.subject}" + (f": {text}" if text else "")
        alone = not any(covers(root, case) for root in self._cases)
        turn.note(case, "opened", why, tell=alone, finding=finding)
        stopped = self._joining.settle(case, turn)
        if case.solid and not stopped:
            self._ladder.advance(case, turn)
        return case

    def _is_full(self, finding: Finding) -> bool:
        """True when no incident is opened any more; forged text must not use up the room of real faults."""
        if finding.subject == AGENT:
            return False
        if (
            _glued(finding)
            and sum(not (case.solid or case.incident.state.ended) for case in self._cases) >= _MOST_HEARSAY
        ):
            return True
        return self._cases.current >= _MOST_CURRENT

    def _add(self, case: Case, finding: Finding, acting: bool, full: bool, turn: Turn) -> None:
        """Another event of an open incident: note it, and perhaps begin the next step."""
        glued = _glued(finding)
        # A probe states again and again what goes on; only a fault that had cleared is new.
        same = finding.record is None and finding.key() in case.raised and not finding.drill
        new_ground = not glued and (not case.solid or (acting and not case.acting))
        if not glued:
            if not case.raised:
                case.raised_at = finding.at
            case.raised.add(finding.key())
            if acting or not case.acting:
                case.found_at = finding.at
                case.change(facts=finding.facts)
            case.change(raised=True)
            case.solid = True
            case.acting = case.acting or acting
            case.companion = case.companion and finding.companion
        grown = self._grow(case, finding, turn)
        if same and not new_ground:
            self._announce(case, finding, _ANNOUNCE_STATE, turn)
        else:
            turn.note(case, "finding", finding=finding)
        if grown and self._joining.settle(case, turn):
            return
        if glued or not full or case.incident.state not in (IncidentState.OPEN, IncidentState.UNRESOLVED):
            return
        if new_ground or (acting and not same and self._after_step(case, finding)):
            self._ladder.advance(case, turn)

    def _after_step(self, case: Case, finding: Finding) -> bool:
        """True unless the finding happened before the last step ended: that step was its answer."""
        ended = case.step_ended
        if ended is None or ended.boot_id != finding.at.boot_id:
            return True
        return finding.at.boottime > ended.boottime

    def _grow(self, case: Case, finding: Finding, turn: Turn, *, own: bool = True) -> bool:
        """Count a finding in; return True when services came to it. A companion (`own` False) does
        not make the fault itself younger, or a flood of effects would keep it alive."""
        incident, glued = case.incident, _glued(finding)
        services = incident.services
        if not glued and not set(finding.services).issubset(services):
            services = tuple(dict.fromkeys((*services, *finding.services)))
        level = finding.severity if glued or case.policy.severity is None else case.policy.severity
        later = own and finding.at.since(incident.last) > timedelta(0)
        case.change(
            findings=incident.findings + 1,
            last=finding.at if later else incident.last,
            services=services,
            severity=level if own and incident.severity < level else incident.severity,
        )
        if own:
            case.active = turn.now
        case.dirty = True
        return services is not incident.services

    def _announce(self, case: Case, finding: Finding, every: timedelta, turn: Turn) -> None:
        """Note a repeated finding, but in a flood only now and then; a tick notes the rest."""
        if case.announced is None or turn.now.since(case.announced) >= every:
            turn.note(case, "finding", finding=finding)
