"""The operator's orders take effect at once, are written down with who gave them, or say why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bandog.domain.model import Finding, Incident, IncidentState, StepState
from bandog.runtime.control import OperatorError
from bandog.runtime.gates import Holds
from bandog.runtime.operations import Operations
from bandog.services.registry import Registry, Service
from bandog.store.rows import AddEvent, DropHold, SaveHold
from bandog.testing import FakeClock
from samples import incident


class Executor:
    """The two calls that orders make."""

    def __init__(self) -> None:
        self.tripped = False
        self.poked = 0

    def rearm(self) -> bool:
        was, self.tripped = self.tripped, False
        return was

    def poke(self) -> None:
        self.poked += 1


class Desk:
    """Operations over lists."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rows: list[Any] = []
        self.findings: list[Finding] = []
        self.inputs: list[Any] = []
        self.incidents: dict[int, Incident] = {}
        self.executor = Executor()
        self.holds = Holds()
        self.rearmed = 0
        self.operations = Operations(
            clock=self.clock,
            pipe=self,
            executor=self.executor,  # type: ignore[arg-type]  # a double with the two calls used
            holds=self.holds,
            registry=lambda: Registry((Service(name="qwen", unit="qwen.service"),)),
            incidents=lambda: self.incidents,
            kinds=lambda: ("nvidia.xid",),
            commit=self.commit,
            status=dict,
            plugins=list,
            test_targets=self.targets,
            rearmed=self.count,
            reload=self.reload,
        )

    def apply(self, event: Any) -> None:
        self.inputs.append(event)

    def found(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.incidents[7] = incident(7, at=self.clock.now(), subject=finding.subject, kind=finding.kind, drill=True)

    async def commit(self, *rows: Any) -> None:
        self.rows += rows

    async def targets(self, names: Any, by: str) -> list[tuple[str, bool, str]]:
        return [("oncall", True, ""), ("chat", False, "refused")]

    def count(self) -> None:
        self.rearmed += 1

    async def reload(self) -> str:
        return "2 policies"


def carry(order: Callable[[], Any]) -> Any:
    async def go() -> Any:
        answer = order()
        return await answer if isinstance(answer, Awaitable) else answer

    return asyncio.run(go())


def test_a_hold_holds_at_once_and_is_written_with_its_author_and_end() -> None:
    desk = Desk()
    answer = carry(lambda: desk.operations.hold("qwen", 7200, "firmware", "ada"))
    assert "for 2h" in answer["text"]
    (hold,) = desk.holds.active(desk.clock.now())
    assert (hold.target, hold.by, hold.reason) == ("qwen", "ada", "firmware")
    assert {type(row) for row in desk.rows} == {SaveHold, AddEvent}
    desk.clock.advance(timedelta(hours=2, seconds=1))
    assert desk.holds.active(desk.clock.now()) == ()


@pytest.mark.parametrize("seconds", [0, -5, 1e12])
def test_a_hold_without_a_sane_end_is_refused(seconds: float) -> None:
    with pytest.raises(OperatorError):
        carry(lambda: Desk().operations.hold("*", min(seconds, 1e9), "x", "ada"))


def test_releasing_what_is_not_held_says_so() -> None:
    with pytest.raises(OperatorError, match="not held"):
        carry(lambda: Desk().operations.release("*", "ada"))


def test_releasing_wakes_what_waits() -> None:
    desk = Desk()
    carry(lambda: desk.operations.hold("*", 60, "x", "ada"))
    carry(lambda: desk.operations.release("*", "bob"))
    assert desk.executor.poked == 1
    assert DropHold in {type(row) for row in desk.rows}


def test_ack_of_an_unknown_incident_is_refused() -> None:
    with pytest.raises(OperatorError, match="no open incident #3"):
        Desk().operations.ack(3, "ada")


def test_rearm_without_a_tripped_breaker_is_refused_and_with_one_is_recorded() -> None:
    desk = Desk()
    with pytest.raises(OperatorError, match="nothing has tripped"):
        carry(lambda: desk.operations.rearm("ada"))
    desk.executor.tripped = True
    carry(lambda: desk.operations.rearm("ada"))
    assert desk.rearmed == 1
    assert [row.what for row in desk.rows] == ["rearmed"]


def test_rearm_names_the_open_incidents_whose_step_was_only_observed() -> None:
    desk = Desk()
    desk.executor.tripped = True
    halted = incident(at=desk.clock.now(), step_state=StepState.WOULD, why="would have restarted qwen")
    others = (
        replace(halted, step_state=StepState.PROVED),
        replace(halted, state=IncidentState.RESOLVED),
        replace(halted, acked_by="bob"),
        replace(halted, drill=True),
    )
    unresolved = replace(halted, state=IncidentState.UNRESOLVED)
    every = (halted, *others, unresolved)
    desk.incidents = {number: replace(one, id=number) for number, one in enumerate(every, start=1)}
    answer = carry(lambda: desk.operations.rearm("ada"))
    assert [one["id"] for one in answer["waiting"]] == [1, 6]
    assert "not made up for" in answer["text"]
    assert all("waits for its next finding" in one["waits"] for one in answer["waiting"])


def test_a_drill_is_marked_names_its_author_and_acts_only_when_told_to() -> None:
    desk = Desk()
    desk.operations.drill(["nvidia.xid"], "qwen", None, {"xid": 94}, False, "ada")
    desk.operations.drill(["nvidia.xid"], "qwen", None, {"xid": 94}, True, "ada")
    first, second = desk.findings
    assert first.drill
    assert first.services == ("qwen",)
    assert first.facts == {"xid": 94, "drill_by": "ada"}
    assert second.facts["really"] is True


@pytest.mark.parametrize(
    ("kinds", "service", "words"),
    [
        (["nvidia.xid"], "llama", "no service llama.*systemctl reload bandog"),
        (["gpu.melted"], "qwen", "no plugin states gpu.melted"),
    ],
)
def test_a_drill_of_what_does_not_exist_is_refused(kinds: list[str], service: str, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        Desk().operations.drill(kinds, service, None, {}, False, "ada")


def test_notify_test_reports_each_target() -> None:
    answer = carry(lambda: Desk().operations.notify_test([], "ada"))
    assert answer == {"ok": False, "lines": ["oncall: delivered", "chat: FAILED refused"]}
