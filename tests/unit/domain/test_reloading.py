"""A reload while incidents are open."""

from __future__ import annotations

from datetime import timedelta

from chronicle import Chronicle, ladder

from bandog.domain.changes import Tick
from bandog.domain.model import IncidentState
from bandog.domain.policy import Step


def test_an_incident_whose_policy_has_gone_stays_open_without_further_steps() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.report("1.1", "running")
    gpu.reload()
    gpu.report("1.1", "failed")
    assert gpu.asked() == ["restart of qwen"]
    assert gpu.incident().state is IncidentState.OPEN


def test_what_waits_for_a_policy_that_has_gone_is_dropped() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.reload(ladder("evidence", name="other", xid=(13,)))
    assert gpu.dropped == ["1.1"]


def test_a_policy_that_comes_back_goes_on() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.reload()
    gpu.reload(ladder("restart", "reboot"))
    gpu.wait(minutes=1)
    gpu.see()
    assert gpu.asked() == ["restart of qwen", "reboot"]


def test_new_findings_go_to_the_new_policies() -> None:
    gpu = Chronicle()
    assert gpu.see() == ()
    gpu.reload(ladder("restart"))
    gpu.wait(seconds=6)
    gpu.see()
    assert gpu.asked() == ["restart of qwen"]


def test_a_step_before_the_current_one_does_not_make_it_run_twice() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.reload(ladder("evidence", "restart", "reboot"))
    assert gpu.incident().proved_step == gpu.incident().step == 1
    gpu.wait(minutes=1)
    gpu.see()
    assert gpu.asked() == ["restart of qwen", "reboot"]


def test_a_current_step_that_has_gone_is_followed_by_the_one_in_its_place() -> None:
    gpu = Chronicle(ladder("evidence", "restart", "reboot"))
    gpu.see()
    gpu.end("evidence", "proved")
    gpu.reload(ladder("evidence", "reboot"))
    assert gpu.dropped == ["1.2"]
    gpu.wait(minutes=1)
    gpu.see()
    assert gpu.asked() == ["evidence", "restart of qwen", "reboot"]


def test_a_running_step_that_has_gone_finishes_alone() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.report("1.1", "running")
    gpu.reload(ladder("relaunch", "reboot"))
    gpu.wait(minutes=1)
    gpu.see()
    assert len(gpu.open_requests()) == 1
    gpu.report("1.1", "failed")
    assert gpu.asked() == ["restart of qwen", "reboot"]


def test_a_request_that_waits_is_asked_for_again_under_a_stricter_mode() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see()
    gpu.reload(ladder("restart", mode="observe"))
    assert gpu.dropped == ["1.1"]
    (request,) = gpu.open_requests()
    assert (request.id, request.mode) == ("1.2", "observe")


def test_under_a_stricter_mode_what_was_done_already_counts() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see(services=("qwen", "llama"))
    gpu.report("1.1", "running")
    gpu.report("1.1", "proved")
    gpu.reload(ladder("restart", "reboot", mode="observe"))
    assert gpu.dropped == ["1.2"]
    assert gpu.incident().proved_step == 0
    assert gpu.asked() == ["restart of qwen", "restart of llama"]


def test_a_reload_that_changes_nothing_changes_nothing() -> None:
    later = Step(do="reboot", after=timedelta(minutes=10))
    gpu = Chronicle(ladder("restart", later))
    gpu.see()
    gpu.apply(Tick())
    assert gpu.reload(ladder("restart", later)) == ()
