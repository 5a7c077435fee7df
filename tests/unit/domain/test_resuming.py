"""The agent is killed at any point; what was stored goes on, and nothing is asked for twice."""

from __future__ import annotations

from datetime import timedelta

import pytest
from chronicle import Chronicle, ladder

from bandog.domain.changes import RequestDropped, Tick
from bandog.domain.model import IncidentState, StepState
from bandog.domain.policy import Step


@pytest.mark.parametrize("state", ["waiting", "running", "proving"])
def test_a_step_under_way_goes_on_and_is_not_asked_for_again(state: str) -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.report("1.1", state)
    gpu.restart()
    gpu.wait(minutes=1)
    gpu.see()
    assert gpu.asked() == ["restart of qwen"]
    gpu.report("1.1", "proved")
    assert gpu.incident().proved_step == 0


def test_an_end_that_was_stored_but_not_taken_is_taken_first() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.report("1.1", "running")
    request, _, _ = gpu.requests["1.1"]
    gpu.requests["1.1"] = (request, StepState.FAILED, "the job timed out")
    gpu.restart()
    gpu.wait(seconds=1)
    assert gpu.asked() == ["restart of qwen", "reboot"]
    assert "restart of qwen failed: the job timed out" in [c.why for c in gpu.told()]


def test_the_ends_of_the_other_services_are_not_forgotten() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see(services=("qwen", "llama"))
    gpu.report("1.1", "running")
    gpu.report("1.1", "failed", "exit 1")
    gpu.restart()
    gpu.report("1.2", "running")
    gpu.report("1.2", "proved")
    assert gpu.asked()[-1] == "reboot"


def test_a_request_that_is_in_no_store_ends_its_step_without_climbing() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.requests.clear()
    gpu.restart()
    gpu.wait(seconds=1)
    assert gpu.incident().step_state is StepState.FAILED
    assert gpu.asked() == []
    gpu.wait(minutes=1)
    gpu.see()
    assert gpu.asked() == ["reboot"]
    assert list(gpu.requests) == ["1.2"]


def test_a_proved_incident_goes_on_being_quiet() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.wait(hours=12)
    gpu.restart()
    gpu.wait(hours=11)
    assert gpu.incident().state is IncidentState.OPEN
    gpu.wait(hours=1)
    assert gpu.incident().state is IncidentState.RESOLVED


def test_the_ladder_goes_on_over_a_boot() -> None:
    gpu = Chronicle(ladder("reboot", "notify"))
    gpu.see()
    gpu.report("1.1", "running")
    gpu.restart(boot="boot-2")
    gpu.report("1.1", "proving")
    gpu.report("1.1", "failed", "the GPU is still gone")
    assert gpu.asked() == ["reboot", "notify"]


def test_a_wait_for_its_time_goes_on() -> None:
    gpu = Chronicle(ladder(Step(do="restart", after=timedelta(minutes=10))))
    gpu.see()
    gpu.wait(minutes=5)
    gpu.restart()
    gpu.wait(minutes=4)
    assert gpu.asked() == []
    gpu.wait(minutes=1)
    assert gpu.asked() == ["restart of qwen"]


def test_what_was_dropped_before_the_crash_is_dropped_again() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.ack()
    request, _, _ = gpu.requests["1.1"]
    gpu.requests["1.1"] = (request, StepState.WAITING, "")
    gpu.restart()
    (dropped,) = [c for c in gpu.apply(Tick()) if isinstance(c, RequestDropped)]
    assert dropped.request == "1.1"


def test_what_the_configuration_no_longer_asks_for_is_dropped() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.policies = ()
    gpu.restart()
    gpu.wait(seconds=1)
    assert gpu.dropped == ["1.1"]
    assert gpu.incident().state is IncidentState.OPEN


def test_what_is_raised_is_known_to_probes_that_start_anew() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see()
    gpu.restart()
    assert gpu.engine.raised == {("nvidia.xid", gpu.incident().subject, "")}
    gpu.end("restart", "failed")
    gpu.clear()
    assert gpu.incident().state is IncidentState.RESOLVED


def test_an_inhibited_incident_is_still_part_of_its_cause() -> None:
    lost = ladder("reboot", name="lost", xid=(79,), inhibits=("nvidia.xid",))
    gpu = Chronicle(lost, ladder("restart"))
    gpu.see(79)
    gpu.see(94)
    gpu.restart()
    gpu.wait(minutes=1)
    gpu.see(94)
    assert list(gpu.engine.incidents) == [1, 2]
    assert gpu.asked() == ["reboot"]


@pytest.mark.parametrize("nonsense", [None, 7, "x", [], {}, {"asked": 3, "marks": {}, "raised": [1]}])
def test_memory_that_makes_no_sense_is_left_out(nonsense: object) -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.memory = dict.fromkeys(gpu.memory, nonsense)
    gpu.memory["engine.bucket.x"] = nonsense
    gpu.memory["engine.limit.x"] = nonsense
    gpu.restart()
    gpu.wait(minutes=1)
    gpu.see()
    assert gpu.asked() == ["restart of qwen"]
    gpu.report("1.1", "running")
    gpu.report("1.1", "proved")
    assert gpu.incident().proved_step == 0
