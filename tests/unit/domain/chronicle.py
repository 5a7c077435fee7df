"""Drives an engine as the daemon would: a clock, a store that takes every change, an executor by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bandog.domain.changes import (
    Acked,
    ActionTraits,
    Change,
    FindingSeen,
    IncidentChanged,
    Input,
    PoliciesReplaced,
    Remembered,
    RequestDropped,
    RequestMade,
    StepReport,
    Tick,
)
from bandog.domain.codec import from_json, to_json
from bandog.domain.engine import Engine
from bandog.domain.model import Finding, Incident, Instant, Request, Severity, StepState
from bandog.domain.policy import FactTest, Match, Policy, Step

E5 = "gpu:0000:e5:00.0"
START = Instant(
    boot_id="boot-1",
    boottime=timedelta(hours=1),
    utc=datetime(2026, 11, 30, 12, 0, tzinfo=UTC),
    synced=True,
)
ACTIONS = {
    "evidence": ActionTraits(disruptive=False, proves=False),
    "notify": ActionTraits(disruptive=False, proves=False),
    "restart": ActionTraits(per_service=True),
    "relaunch": ActionTraits(per_service=True),
    "reboot": ActionTraits(),
}


def ladder(*steps: str | Step, name: str = "ecc", xid: Sequence[int] = (94,), **fields: Any) -> Policy:
    """A policy for some Xids with these steps."""
    fields.setdefault("quiet", timedelta(hours=24))
    fields.setdefault("notify", ("oncall",))
    match = fields.pop("match", None)
    match = match or Match(kinds=("nvidia.xid",), facts={"xid": FactTest(any_of=tuple(xid))})
    made = tuple(Step(do=step) if isinstance(step, str) else step for step in steps)
    return Policy(name=name, match=match, steps=made, **fields)


class Chronicle:
    """One engine and everything that came out of it."""

    def __init__(self, *policies: Policy, actions: Mapping[str, ActionTraits] = ACTIONS) -> None:
        self.actions = actions
        self.policies = policies
        self.now = START
        self.changes: list[Change] = []
        self.memory: dict[str, Any] = {}
        self.saved: dict[int, Incident] = {}
        self.requests: dict[str, tuple[Request, StepState, str]] = {}
        self.dropped: list[str] = []
        self._records = 0
        self.engine = Engine(policies, actions, host="gpu07")

    # --- what goes in

    def apply(self, event: Input) -> tuple[Change, ...]:
        changes = self.engine.apply(event, self.now)
        self.changes.extend(changes)
        for change in changes:
            if isinstance(change, Remembered):
                self._remember(change)
            elif isinstance(change, IncidentChanged):
                self.saved[change.incident.id] = change.incident
            elif isinstance(change, RequestMade):
                assert change.request.id not in self.requests, "a request id is unique for ever"
                self.requests[change.request.id] = (change.request, StepState.WAITING, "")
            elif isinstance(change, RequestDropped):
                self.dropped.append(change.request)
                request, state, _ = self.requests[change.request]
                if state is StepState.WAITING:
                    self.requests[change.request] = (request, StepState.SKIPPED, change.why)
        return changes

    def _remember(self, change: Remembered) -> None:
        if change.value is None:
            self.memory.pop(change.key, None)
        else:
            self.memory[change.key] = json.loads(json.dumps(change.value))

    def finding(self, xid: int = 94, *, subject: str = E5, **fields: Any) -> Finding:
        self._records += 1
        facts = {"xid": xid, **fields.pop("facts", {})}
        fields.setdefault("kind", "nvidia.xid")
        fields.setdefault("severity", Severity.ERROR)
        fields.setdefault("record", f"record-{self._records}")
        fields.setdefault("services", ("qwen",))
        fields.setdefault("live", True)
        fields.setdefault("at", self.now)
        fields.setdefault("burst", str(xid))
        return Finding(subject=subject, facts=facts, **fields)

    def see(self, xid: int = 94, **fields: Any) -> tuple[Change, ...]:
        return self.apply(FindingSeen(finding=self.finding(xid, **fields)))

    def clear(self, xid: int = 94, **fields: Any) -> tuple[Change, ...]:
        return self.see(xid, raised=False, **fields)

    def report(self, request: str, state: str, why: str = "") -> tuple[Change, ...]:
        kept, _, _ = self.requests[request]
        if request not in self.dropped or StepState(state) is not StepState.WAITING:
            # (That it waits was said before the executor heard of the drop, which still takes it back.)
            self.requests[request] = (kept, StepState(state), why)
        return self.apply(StepReport(request=request, state=StepState(state), why=why))

    def end(self, action: str, state: str, why: str = "") -> None:
        """The executor runs every open request of `action` to an end."""
        open_ = self.open_requests(action)
        assert open_, f"nobody asked for {action}"
        for request in open_:
            if state not in ("skipped", "exhausted", "would"):
                self.report(request.id, "running")
            self.report(request.id, state, why)

    def wait(self, **duration: float) -> tuple[Change, ...]:
        self.now = self.now.plus(timedelta(**duration))
        return self.apply(Tick())

    def ack(self, incident: int = 1, by: str = "ada") -> tuple[Change, ...]:
        return self.apply(Acked(incident=incident, by=by))

    def reload(self, *policies: Policy) -> tuple[Change, ...]:
        self.policies = policies
        return self.apply(PoliciesReplaced(policies=policies))

    def restart(self, *, boot: str | None = None) -> None:
        """Kill the engine and start another from what was stored, through JSON."""
        if boot is not None:
            utc = self.now.utc + timedelta(minutes=5)
            self.now = Instant(boot_id=boot, boottime=timedelta(seconds=30), utc=utc, synced=self.now.synced)
        incidents = [from_json(Incident, json.loads(json.dumps(to_json(i)))) for i in self.saved.values()]
        requests = [
            (from_json(Request, json.loads(json.dumps(to_json(request)))), state, why)
            for request, state, why in self.requests.values()
        ]
        memory = json.loads(json.dumps(self.memory))
        self.engine = Engine(
            self.policies, self.actions, host="gpu07", incidents=incidents, requests=requests, memory=memory
        )

    # --- what came out

    def incident(self, number: int = 1) -> Incident:
        return self.engine.incidents[number]

    def open_requests(self, action: str | None = None) -> list[Request]:
        return [
            request
            for request, state, _ in self.requests.values()
            if not state.ended and action in (None, request.action)
        ]

    def asked(self) -> list[str]:
        """Every request made, as `action` or `action of service`."""
        return [
            f"{request.action} of {request.service}" if request.service else request.action
            for request, _, _ in self.requests.values()
        ]

    def told(self) -> list[IncidentChanged]:
        return [change for change in self.changes if isinstance(change, IncidentChanged) and change.tell]

    def words(self, changes: Sequence[Change] | None = None) -> list[str]:
        """The timeline's words, in order."""
        source = self.changes if changes is None else changes
        return [change.what for change in source if isinstance(change, IncidentChanged)]

    def later(self, at: Instant, **duration: float) -> Instant:
        return replace(at.plus(timedelta(**duration)))
