"""The engine: (state, input, now) → changes. Findings open incidents, incidents climb ladders.

It is synchronous, pure and in memory; only the loop calls it. What must survive a restart leaves as
changes and comes back through the constructor. It never raises on what detectors state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from . import closing, joining
from .case import CASE, Case, Turn, resume
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
from .coalesce import Burst, Coalescer
from .counting import Buckets, Count, StepLimits, weight_of
from .ladder import Ladder
from .matching import PolicyIndex
from .model import EMPTY, Finding, Incident, IncidentState, Instant, Request, StepState
from .policy import Match, Policy, allows

LAST = "engine.last_incident"
ACT_WITHIN = timedelta(minutes=5)
_MOST_OPEN = 1000
_ANNOUNCE_BURST = timedelta(seconds=1)
_ANNOUNCE_STATE = timedelta(minutes=1)
_NOTHING = Match(kinds=())


def may_act(finding: Finding, now: Instant) -> bool:
    """True when a finding may lead to a disruptive act: live, of this boot, at most 5 min old, not glued."""
    if not finding.live or finding.facts.get("glued"):
        return False
    if finding.at.boot_id != now.boot_id:
        return False
    return abs(now.boottime - finding.at.boottime) <= ACT_WITHIN


class Engine:
    """All open incidents, and what happens next.

    `actions` says of each loaded action what the engine must know. `incidents`, `requests` (each
    with its state and last sentence, ended ones of open incidents included) and `memory` (what left
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
        self._index = PolicyIndex(policies)
        self._buckets = Buckets(memory)
        self._limits = StepLimits(memory)
        self._ladder = Ladder(actions, host, self._limits)
        self._bursts = Coalescer()
        self._cases: dict[int, Case] = {}
        self._open: dict[tuple[str, str, bool], Case] = {}
        self._subjects: dict[str, dict[int, Case]] = {}
        self._late: list[StepReport] = []
        self._lost: list[Case] = []
        self._refused = 0
        last = memory.get(LAST)
        self._last = last if isinstance(last, int) else 0
        self._resume(incidents, requests, memory)

    @property
    def incidents(self) -> Mapping[int, Incident]:
        """Every incident in memory by number: the open ones, and those that ended minutes ago."""
        return MappingProxyType({number: case.incident for number, case in self._cases.items()})

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies in reading order."""
        return self._index.policies

    @property
    def refused(self) -> int:
        """How many findings opened no incident because a thousand were open already."""
        return self._refused

    def policy_for(self, finding: Finding) -> Policy | None:
        """Return the policy that takes `finding`, counting aside."""
        return self._index.find(finding)

    def counts(self, now: Instant) -> tuple[Count, ...]:
        """Return the `count:` buckets that hold something but are not full."""
        return self._buckets.counts(now)

    def apply(self, event: Input, now: Instant) -> tuple[Change, ...]:
        """Take one input and return what changes, in order. To be committed together."""
        turn = Turn(now)
        if self._late or self._lost:
            self._catch_up(turn)
        if isinstance(event, FindingSeen):
            self._found(event.finding, turn)
        elif isinstance(event, StepReport):
            self._reported(event, turn)
        elif isinstance(event, Tick):
            self._tick(turn)
        elif isinstance(event, Acked):
            self._acked(event, turn)
        elif isinstance(event, PoliciesReplaced):
            self._replace_policies(event.policies, turn)
        turn.remember()
        return tuple(turn.changes)

    # --- findings --------------------------------------------------------------------------------

    def _found(self, finding: Finding, turn: Turn) -> None:
        if not finding.raised:
            self._cleared(finding, turn)
            return
        acting = may_act(finding, turn.now)
        burst, new = self._bursts.place(finding, acting, turn.now)
        if not new and self._again(burst, finding, turn):
            return
        if finding.companion:
            cause = joining.cause_of(finding, acting, self._about(finding.subject))
            if cause is not None:
                burst.incident = cause.incident.id
                self._join(cause, finding, acting, turn)
                return
        policy = self._index.find(finding)
        if policy is None:
            return
        case = self._taken(policy, finding, acting, turn)
        if case is None:
            return
        burst.incident = case.incident.id
        if not finding.companion:
            for effect in joining.effects_of(finding, self._about(finding.subject)):
                if effect is not case:
                    self._inhibit(effect, case, turn)

    def _again(self, burst: Burst, finding: Finding, turn: Turn) -> bool:
        """Count a finding of a known burst; False when it has to be looked at as a new one."""
        case = self._cases.get(burst.incident) if burst.incident is not None else None
        if case is None:
            return burst.incident is None and "count" not in finding.facts
        if case.incident.state is IncidentState.RESOLVED:
            return False
        self._count_in(case, finding, turn.now)
        self._announce(case, finding, _ANNOUNCE_BURST, turn)
        return True

    def _taken(self, policy: Policy, finding: Finding, acting: bool, turn: Turn) -> Case | None:
        """A policy takes the finding: count it, and open its incident or add to it."""
        rate, full = policy.match.count, True
        if rate is not None and rate.count > 1:
            marks = ("drill" if finding.drill else "") + ("" if acting else "told")
            key = f"{policy.name}|{marks}|{finding.subject}"
            full = self._buckets.fill(key, rate, weight_of(finding), turn.now, turn.changes)
        case = self._open.get((policy.name, finding.subject, finding.drill))
        if case is not None:
            self._add(case, finding, acting, full, turn)
        elif full:
            case = self._open_incident(policy, finding, acting, turn)
        return case

    def _open_incident(self, policy: Policy, finding: Finding, acting: bool, turn: Turn) -> Case | None:
        if len(self._open) >= _MOST_OPEN:
            self._refused += 1
            return None
        glued = bool(finding.facts.get("glued"))
        self._last += 1
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
        self._keep(case)
        turn.changes.append(Remembered(key=LAST, value=self._last))
        root = next((other for other in self._cases.values() if joining.inhibits(other, case)), None)
        text = finding.facts.get("text")
        why = f"{finding.kind} on {finding.subject}" + (f": {text}" if text else "")
        turn.note(case, "opened", why, tell=root is None, finding=finding)
        if root is not None:
            self._inhibit(case, root, turn)
            return case
        self._inhibit_effects(case, turn)
        if case.solid:
            self._ladder.advance(case, turn)
        return case

    def _add(self, case: Case, finding: Finding, acting: bool, full: bool, turn: Turn) -> None:
        """Another event of an open incident: note it, and perhaps begin the next step."""
        # A probe states again and again what goes on; only a fault that had cleared is new.
        same = finding.record is None and finding.key() in case.raised and not finding.drill
        glued = bool(finding.facts.get("glued"))
        if not case.incident.raised or not case.raised:
            case.raised_at = finding.at
        if not glued:
            case.raised.add(finding.key())
        first_solid = not glued and not case.solid
        case.solid = case.solid or not glued
        case.companion = case.companion and finding.companion
        if not glued and (acting or not case.acting):
            case.found_at = finding.at
            case.change(facts=finding.facts)
        became_acting = acting and not case.acting
        case.acting = case.acting or acting
        self._count_in(case, finding, turn.now, raised=case.incident.raised or not glued)
        if same and not became_acting:
            self._announce(case, finding, _ANNOUNCE_STATE, turn)
        else:
            turn.note(case, "finding", tell=False, finding=finding)
        if glued or not full or case.incident.state not in (IncidentState.OPEN, IncidentState.UNRESOLVED):
            return
        news = became_acting or first_solid
        if news or (acting and not same and self._after_step(case, finding)):
            self._ladder.advance(case, turn)

    def _after_step(self, case: Case, finding: Finding) -> bool:
        """True unless the finding happened before the last step ended: that step was its answer."""
        ended = case.step_ended
        if ended is None or ended.boot_id != finding.at.boot_id:
            return True
        return finding.at.boottime > ended.boottime

    def _count_in(self, case: Case, finding: Finding, now: Instant, *, raised: bool | None = None) -> None:
        incident = case.incident
        glued = bool(finding.facts.get("glued"))
        services = incident.services
        if not glued and not set(finding.services).issubset(services):
            services = tuple(dict.fromkeys((*services, *finding.services)))
        severity = incident.severity
        if case.policy.severity is None or not case.solid:
            severity = max(severity, finding.severity, key=lambda level: level.rank)
        elif not glued:
            severity = max(severity, case.policy.severity, key=lambda level: level.rank)
        later = finding.at.since(incident.last) > timedelta(0)
        case.active = now
        case.dirty = True
        case.change(
            findings=incident.findings + 1,
            last=finding.at if later else incident.last,
            services=services,
            severity=severity,
            raised=incident.raised if raised is None else raised,
        )

    def _announce(self, case: Case, finding: Finding, every: timedelta, turn: Turn) -> None:
        """Note a repeated finding, but in a flood only now and then; a tick notes the rest."""
        if case.announced is None or turn.now.since(case.announced) >= every:
            turn.note(case, "finding", finding=finding)

    def _cleared(self, finding: Finding, turn: Turn) -> None:
        if finding.facts.get("glued"):
            return
        self._bursts.forget(finding)
        for case in self._about(finding.subject):
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
            if closing.clears(case):
                self._end(case, IncidentState.RESOLVED, "cleared", turn)

    # --- joining ---------------------------------------------------------------------------------

    def _join(self, cause: Case, finding: Finding, acting: bool, turn: Turn) -> None:
        self._count_in(cause, finding, turn.now)
        why = f"{finding.kind} came with it"
        turn.note(cause, "joined", why, finding=finding)

    def _inhibit(self, effect: Case, root: Case, turn: Turn) -> None:
        """`effect` joins `root` and stops: what waits is dropped, what runs finishes."""
        told = effect.announced is not None and effect.incident.opened != root.incident.opened
        number = root.incident.id
        effect.change(state=IncidentState.INHIBITED, joined=number, ended=turn.now)
        if effect.companion:
            self._open.pop(effect.key, None)
        self._ladder.drop(effect, f"it is part of incident #{number}", turn, all_=True, again=False)
        turn.note(effect, "inhibited", f"part of incident #{number}", tell=told)
        turn.note(root, "joined", f"{effect.incident.kind} on {effect.incident.subject} is part of it")

    def _inhibit_effects(self, root: Case, turn: Turn) -> None:
        if not root.policy.inhibits:
            return
        for effect in list(self._open.values()):
            if not effect.incident.state.ended and joining.inhibits(root, effect):
                self._inhibit(effect, root, turn)

    # --- reports, people, reload -----------------------------------------------------------------

    def _reported(self, report: StepReport, turn: Turn) -> None:
        head = report.request.partition(".")[0]
        case = self._cases.get(int(head)) if head.isascii() and head.isdigit() else None
        if case is not None:
            self._ladder.report(case, report, turn)

    def _acked(self, ack: Acked, turn: Turn) -> None:
        case = self._cases.get(ack.incident)
        if case is None or case.incident.state.ended or case.incident.acked_by is not None:
            return
        case.change(acked_by=ack.by)
        case.active = turn.now
        self._ladder.drop(case, f"{ack.by} took over", turn, all_=True, again=False)
        turn.note(case, "acked", f"{ack.by} took over")

    def _replace_policies(self, policies: tuple[Policy, ...], turn: Turn) -> None:
        self._index = PolicyIndex(policies)
        for case in list(self._cases.values()):
            new = self._index.named(case.incident.policy)
            old, case.policy = case.policy, new or case.policy
            case.orphan = new is None
            if case.incident.state.ended:
                continue
            if new is None:
                self._ladder.drop(case, "its policy has gone", turn, all_=True, again=True)
            elif new is not old:
                self._follow(case, old, new, turn)

    def _follow(self, case: Case, old: Policy, new: Policy, turn: Turn) -> None:
        """The ladder may have changed under an incident: find its rung, and obey a stricter mode."""
        step = case.incident.step
        if not 0 <= step < len(old.steps):
            return
        do = old.steps[step].do
        nth = [s.do for s in old.steps[:step]].count(do)
        places = [index for index, s in enumerate(new.steps) if s.do == do]
        if nth >= len(places):
            self._ladder.drop(case, "its step has gone from the policy", turn, all_=True, again=False)
            case.change(step=min(step, len(new.steps)) - 1)
            turn.note(case, "step-ended", "", action=do, end=case.incident.step_state)
            return
        if places[nth] != step:
            proved = places[nth] if case.incident.proved_step == step else case.incident.proved_step
            case.change(step=places[nth], proved_step=proved)
        mode = "enforce" if allows(new.mode, do) else "observe"
        if any(asked.request.mode != mode for asked in case.open_requests):
            self._ladder.drop(case, "its mode has changed", turn, all_=False, again=True)
            self._ladder.advance(case, turn)
        turn.touched[case.incident.id] = case

    # --- time ------------------------------------------------------------------------------------

    def _tick(self, turn: Turn) -> None:
        now = turn.now
        for case in list(self._cases.values()):
            if case.incident.state.ended:
                self._leave(case, now, turn)
                continue
            self._ladder.due(case, turn)
            end = closing.verdict(case, now)
            if end is not None:
                self._end(case, *end, turn)
            elif closing.reminds(case, now):
                case.change(reminded=now)
                turn.note(case, "reminder", case.incident.why or "still open", tell=True)
            elif case.dirty and (case.announced is None or now.since(case.announced) >= _ANNOUNCE_BURST):
                turn.note(case, "finding")
        self._buckets.flush(now, turn.changes)
        self._limits.prune(now, turn.changes)
        self._bursts.prune(now)

    def _end(self, case: Case, state: IncidentState, why: str, turn: Turn) -> None:
        if state is IncidentState.RESOLVED:
            case.change(state=state, ended=turn.now)
            self._open.pop(case.key, None)
            turn.note(case, "resolved", why, tell=True)
        else:
            case.change(state=state, reminded=turn.now)
            turn.note(case, "unresolved", why, tell=True)

    def _leave(self, case: Case, now: Instant, turn: Turn) -> None:
        incident = case.incident
        if incident.state is IncidentState.INHIBITED:
            root = self._cases.get(incident.joined or 0)
            held = (IncidentState.OPEN, IncidentState.STUCK)
            if case.open_requests or (root is not None and root.incident.state in held):
                return
            if self._open.get(case.key) is case:
                del self._open[case.key]
        if not closing.leaves(case, now):
            return
        del self._cases[incident.id]
        about = self._subjects.get(incident.subject, {})
        about.pop(incident.id, None)
        if not about:
            self._subjects.pop(incident.subject, None)
        if case.remembered is not None:
            turn.changes.append(Remembered(key=f"{CASE}{incident.id}", value=None))

    # --- keeping ---------------------------------------------------------------------------------

    def _keep(self, case: Case) -> None:
        self._cases[case.incident.id] = case
        self._open[case.key] = case
        self._subjects.setdefault(case.incident.subject, {})[case.incident.id] = case

    def _about(self, subject: str) -> list[Case]:
        return list(self._subjects.get(subject, {}).values())

    def _resume(
        self,
        incidents: Iterable[Incident],
        requests: Sequence[tuple[Request, StepState, str]],
        memory: Mapping[str, Any],
    ) -> None:
        by_incident: dict[int, dict[str, tuple[Request, StepState, str]]] = {}
        for request, state, why in requests:
            by_incident.setdefault(request.incident, {})[request.id] = (request, state, why)
        for incident in incidents:
            self._last = max(self._last, incident.id)
            if incident.state is IncidentState.RESOLVED:
                continue
            own = by_incident.get(incident.id, {})
            policy = self._index.named(incident.policy)
            case = resume(
                incident,
                policy or Policy(name=incident.policy, match=_NOTHING),
                memory.get(f"{CASE}{incident.id}"),
                own,
            )
            case.orphan = policy is None
            self._keep(case)
            for name, asked in case.asked.items():
                _, state, why = own[name]
                if state.ended and not asked.state.ended:
                    self._late.append(StepReport(request=name, state=state, why=why))
            waits = policy is not None and incident.step < len(policy.steps)
            waits = waits and policy is not None and policy.steps[incident.step].after is not None
            if case.busy and not case.open_requests and not (case.delayed and waits):
                self._lost.append(case)

    def _catch_up(self, turn: Turn) -> None:
        """What ended between the last commit of the executor's and ours."""
        late, self._late = self._late, []
        for report in late:
            self._reported(report, turn)
        lost, self._lost = self._lost, []
        for case in lost:
            if case.busy and not case.open_requests:
                self._ladder.lose(case, turn)
