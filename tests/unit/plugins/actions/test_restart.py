"""`restart` asks systemd for one job at most, refuses when it must, and proves what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from action_bench import CGROUP, UNIT, Bench

from bandog import (
    ChildOutcome,
    JobOutcome,
    Proof,
    ProofState,
    Readiness,
    Result,
    ResultState,
    SystemdError,
)
from bandog_plugins.actions.restart import Restart

SECOND = timedelta(seconds=1)


def verbs(bench: Bench) -> list[str]:
    return [job.verb for job in bench.systemd.jobs]


def prove_for(bench: Bench, action: Restart, result: Result, seconds: int, **fields: Any) -> Proof:
    """Poll the proof every 2 s, as the executor does, until it decides."""
    request = bench.request(**fields)
    proof = action.prove(request, result, bench)
    for _ in range(seconds // 2):
        if proof.state is not ProofState.NOT_YET:
            break
        bench.second()
        bench.second()
        proof = action.prove(request, result, bench)
    return proof


def test_a_running_unit_is_restarted_by_one_job(bench: Bench) -> None:
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.DONE
    assert verbs(bench) == ["restart"]
    assert bench.systemd.resets == []


def test_a_restart_is_proved_once_the_service_has_been_ready_for_settle(bench: Bench) -> None:
    action, request = Restart(), bench.request()
    result = action.run(request, bench)
    bench.services.readiness["qwen"] = [Readiness(ready=False, why="refused"), Readiness(ready=True)]
    assert action.prove(request, result, bench).state is ProofState.NOT_YET
    began = bench.clock.now()
    proof = prove_for(bench, action, result, 60)
    assert proof.state is ProofState.PROVED
    assert bench.clock.now().since(began) >= timedelta(seconds=10)


def test_readiness_that_is_lost_within_settle_starts_the_count_anew(bench: Bench) -> None:
    action = Restart()
    result = action.run(bench.request(), bench)
    bench.services.readiness["qwen"] = [
        *[Readiness(ready=True)] * 3,
        Readiness(ready=False),
        Readiness(ready=True),
    ]
    began = bench.clock.now()
    assert prove_for(bench, action, result, 60).state is ProofState.PROVED
    assert bench.clock.now().since(began) >= timedelta(seconds=18)


def test_a_service_that_never_answers_is_not_proved_and_not_disproved(bench: Bench) -> None:
    action = Restart()
    result = action.run(bench.request(), bench)
    bench.services.readiness["qwen"] = Readiness(ready=None, why="timeout")
    assert prove_for(bench, action, result, 120).state is ProofState.NOT_YET


def test_a_unit_that_fails_after_the_restart_disproves_it_at_once(bench: Bench) -> None:
    action = Restart()
    result = action.run(bench.request(), bench)
    bench.systemd.change(UNIT, active_state="failed", sub_state="failed", result="start-limit-hit")
    proof = prove_for(bench, action, result, 60)
    assert proof.state is ProofState.DISPROVED
    assert "start-limit-hit" in proof.why


def test_a_stuck_task_fails_the_step_without_touching_the_unit(bench: Bench) -> None:
    bench.stuck()
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.FAILED
    assert result.why.startswith("unkillable: VLLM::Worker_TP pid 4711 in uvm_va_space_destroy")
    assert result.facts["unkillable"] is True
    assert verbs(bench) == []


def test_a_task_in_d_that_makes_progress_between_the_samples_is_not_stuck(bench: Bench) -> None:
    bench.stuck()
    bench.on_second = lambda: bench.host.task(4711, "VLLM::Worker_TP", "D", switches=8)
    assert Restart().run(bench.request(), bench).state is ResultState.DONE
    assert verbs(bench) == ["restart"]


def test_a_pid_taken_by_another_process_between_the_samples_is_not_stuck(bench: Bench) -> None:
    bench.stuck()
    bench.on_second = lambda: bench.host.task(4711, "loader", "D", switches=7, start=2000)
    assert Restart().run(bench.request(), bench).state is ResultState.DONE


def test_a_unit_reactivated_after_the_finding_counts_as_restarted_by_its_manager(bench: Bench) -> None:
    action, request = Restart(), bench.request()
    bench.second()
    bench.systemd.change(UNIT, active_enter=bench.clock.now().boottime, invocation_id="f" * 32)
    result = action.run(request, bench)
    assert result.state is ResultState.DONE
    assert result.facts["by_manager"] is True
    assert verbs(bench) == []
    assert prove_for(bench, action, result, 60, found_at=request.found_at).state is ProofState.PROVED


def test_a_unit_that_waits_for_its_own_restart_is_left_to_its_manager(bench: Bench) -> None:
    bench.systemd.change(UNIT, active_state="activating", sub_state="auto-restart", result="signal")
    result = Restart().run(bench.request(), bench)
    assert result.facts["by_manager"] is True
    assert verbs(bench) == []


def driver_mismatch(bench: Bench) -> None:
    bench.host.write("/sys/module/nvidia/version", "570.86.15\n")
    library = bench.host.write("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.51.03", b"")
    (library.parent / "libnvidia-ml.so.1").symlink_to(library.name)


def test_a_serving_unit_under_a_mismatched_driver_is_never_restarted(bench: Bench) -> None:
    driver_mismatch(bench)
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.SKIPPED
    assert "living service into a dead one" in result.why
    assert "570.86.15" in result.why and "575.51.03" in result.why
    assert verbs(bench) == []


def test_a_dead_service_under_a_mismatched_driver_may_be_restarted(bench: Bench) -> None:
    driver_mismatch(bench)
    bench.services.readiness["qwen"] = Readiness(ready=False, why="refused")
    assert Restart().run(bench.request(), bench).state is ResultState.DONE


def test_the_version_is_asked_of_the_driver_in_a_child_when_sysfs_has_none(bench: Bench) -> None:
    driver_mismatch(bench)
    bench.paths.at("/sys/module/nvidia/version").unlink()
    bench.host.write("/proc/driver/nvidia/version", "")
    said = b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    bench.child_results = lambda argv: ChildOutcome(code=0, out=said)
    assert Restart().run(bench.request(), bench).state is ResultState.SKIPPED
    assert [argv[0] for argv in bench.children] == ["cat"]


def entry(word: str, at: timedelta) -> bytes:
    ids = {"stopping": "de5b426a63be47a7b6ac3eaac82e2f6f", "ended": "7ad2d189f7e94e70a38c781354912448"}
    stamp = str(at // timedelta(microseconds=1))
    return json.dumps({"__MONOTONIC_TIMESTAMP": stamp, "MESSAGE_ID": ids[word]}).encode() + b"\n"


@pytest.mark.parametrize(
    ("entries", "state"),
    [
        ((("ended", 5),), ResultState.DONE),
        ((("stopping", -3), ("ended", -2), ("ended", 5)), ResultState.DONE),
        ((("stopping", 4), ("ended", 5)), ResultState.SKIPPED),
        ((("stopping", -3), ("ended", -2)), ResultState.SKIPPED),
        ((), ResultState.SKIPPED),
    ],
    ids=["ended by itself", "an older stop", "stopped by a person", "only older entries", "an empty journal"],
)
def test_an_inactive_unit_is_restarted_only_if_the_journal_shows_an_end_without_a_stop_job(
    bench: Bench, entries: tuple[tuple[str, int], ...], state: ResultState
) -> None:
    up_since = bench.systemd._units[UNIT].active_enter
    bench.systemd.change(UNIT, active_state="inactive", sub_state="dead", main_pid=None)
    out = b"".join(entry(word, up_since + seconds * SECOND) for word, seconds in entries)
    bench.child_results = lambda argv: ChildOutcome(code=0, out=out)
    assert Restart().run(bench.request(), bench).state is state
    assert verbs(bench) == (["restart"] if state is ResultState.DONE else [])


@pytest.mark.parametrize(
    "outcome",
    [ChildOutcome(code=None, timed_out=True), ChildOutcome(code=1), ChildOutcome(code=0, out=b"\xff{\n")],
    ids=["no answer", "an error", "garbage"],
)
def test_a_journal_that_cannot_be_read_leaves_an_inactive_unit_alone(bench: Bench, outcome: ChildOutcome) -> None:
    bench.systemd.change(UNIT, active_state="inactive", sub_state="dead", main_pid=None)
    bench.child_results = lambda argv: outcome
    assert Restart().run(bench.request(), bench).state is ResultState.SKIPPED


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"load_state": "masked"}, "is masked"),
        ({"load_state": "not-found"}, "does not exist"),
        ({"load_state": "error"}, "cannot be loaded"),
        ({"need_daemon_reload": True}, "was edited"),
    ],
)
def test_a_unit_that_a_person_changed_is_left_alone(bench: Bench, fields: dict[str, Any], word: str) -> None:
    bench.systemd.change(UNIT, **fields)
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.SKIPPED
    assert word in result.why
    assert verbs(bench) == []


def test_someone_elses_job_is_waited_for(bench: Bench) -> None:
    bench.systemd.change(UNIT, job=77)
    assert Restart().run(bench.request(), bench).state is ResultState.RETRY
    assert verbs(bench) == []


def test_a_stuck_task_is_named_even_while_someone_elses_job_waits_for_it(bench: Bench) -> None:
    bench.systemd.change(UNIT, job=77)
    bench.stuck()
    assert Restart().run(bench.request(), bench).facts["unkillable"] is True


def test_a_start_that_loads_from_a_slow_disk_is_not_taken_for_unkillable(bench: Bench) -> None:
    bench.systemd.script("restart", UNIT, JobOutcome(result="timeout", why="no end"))

    def loading(job: Any) -> None:
        bench.stuck(comm="loader", wchan="folio_wait_bit")
        bench.systemd.change(UNIT, active_state="activating", sub_state="start")

    bench.systemd.on_job = loading
    assert Restart().run(bench.request(), bench).state is ResultState.DONE


def test_a_silent_systemd_changes_nothing_and_may_be_asked_again(bench: Bench) -> None:
    bench.systemd.disconnect("timeout")
    assert Restart().run(bench.request(), bench).state is ResultState.RETRY


def test_a_used_up_start_limit_is_reset_as_part_of_the_one_restart(bench: Bench) -> None:
    bench.systemd.change(UNIT, active_state="failed", sub_state="failed", result="start-limit-hit")
    assert Restart().run(bench.request(), bench).state is ResultState.DONE
    assert bench.systemd.resets == [UNIT]
    assert verbs(bench) == ["restart"]


@pytest.mark.parametrize("word", ["dependency", "canceled", "failed", "skipped", "assert", "refused"])
def test_a_job_that_leaves_the_unit_down_fails_with_systemds_word(bench: Bench, word: str) -> None:
    bench.systemd.script("restart", UNIT, word)
    down = "failed" if word == "failed" else "inactive"
    bench.systemd.on_job = lambda job: bench.systemd.change(UNIT, active_state=down, result="exit-code") and None
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.FAILED
    assert word in result.why
    assert verbs(bench) == ["restart"]


def test_a_stop_that_a_stuck_task_holds_up_ends_unkillable(bench: Bench) -> None:
    bench.systemd.script("restart", UNIT, JobOutcome(result="timeout", why="no end"))

    def hang(job: Any) -> None:
        bench.stuck()
        bench.systemd.change(UNIT, active_state="deactivating", sub_state="stop-sigkill")

    bench.systemd.on_job = hang
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.FAILED
    assert result.facts["unkillable"] is True


def test_a_bus_lost_after_the_asking_leaves_the_decision_to_the_proof(bench: Bench) -> None:
    action = Restart()
    bench.systemd.script("restart", UNIT, SystemdError("disconnected", "the bus is gone"))
    result = action.run(bench.request(), bench)
    assert result.state is ResultState.DONE
    assert result.facts["uncertain"] is True
    proof = prove_for(bench, action, result, 60)
    assert proof.state is ProofState.DISPROVED
    assert "never restarted" in proof.why
    assert verbs(bench) == ["restart"]


def test_a_task_that_sticks_while_the_proof_watches_the_stop_disproves_early(bench: Bench) -> None:
    action = Restart()
    bench.systemd.script("restart", UNIT, JobOutcome(result="timeout", why="no end"))
    bench.systemd.on_job = lambda job: bench.systemd.change(UNIT, active_state="deactivating") and None
    result = action.run(bench.request(), bench)
    assert result.state is ResultState.DONE
    bench.stuck()
    proof = prove_for(bench, action, result, 60)
    assert proof.state is ProofState.DISPROVED
    assert proof.facts["unkillable"] is True


def test_an_interrupted_restart_that_happened_goes_on_to_the_proof(bench: Bench) -> None:
    action, request, started = Restart(), bench.request(), bench.clock.now()
    bench.second()
    bench.systemd.change(UNIT, active_enter=bench.clock.now().boottime, invocation_id="e" * 32)
    result = bench.interrupted(request, started)
    assert prove_for(bench, action, result, 60).state is ProofState.PROVED
    assert verbs(bench) == []


def test_an_interrupted_restart_that_never_happened_is_not_made_up_for(bench: Bench) -> None:
    action, request = Restart(), bench.request()
    result = bench.interrupted(request, bench.clock.now())
    proof = prove_for(bench, action, result, 60)
    assert proof.state is ProofState.DISPROVED
    assert verbs(bench) == []


def test_a_boot_between_act_and_proof_counts_as_the_restart(bench: Bench) -> None:
    action, request, started = Restart(), bench.request(), bench.clock.now()
    bench.clock.reboot()
    bench.systemd.change(UNIT, active_enter=timedelta(seconds=15), invocation_id="d" * 32)
    assert prove_for(bench, action, bench.interrupted(request, started), 60).state is ProofState.PROVED
    assert verbs(bench) == []


def test_with_kill_mode_process_the_state_between_stop_and_start_is_recorded(bench: Bench) -> None:
    bench.systemd.change(UNIT, kill_mode="process")
    assert Restart().run(bench.request(), bench).state is ResultState.DONE
    assert verbs(bench) == ["stop", "start"]
    assert [facts["phase"] for _, facts in bench.notes] == ["stopping", "stopped", "starting"]


def test_what_outlives_the_stop_is_waited_for_and_named(bench: Bench) -> None:
    bench.systemd.change(UNIT, kill_mode="none")
    bench.host.task(4712, "VLLM::Worker", "R")
    bench.host.cgroup(CGROUP, 4712)
    began = bench.clock.now()
    result = Restart().run(bench.request(), bench)
    assert bench.clock.now().since(began) >= timedelta(seconds=30)
    assert "beside 1 old tasks" in result.why
    assert verbs(bench) == ["stop", "start"]


def test_a_start_that_a_dead_agent_owes_is_made_once(bench: Bench) -> None:
    action, request, started = Restart(), bench.request(), bench.clock.now()
    bench.second()
    bench.systemd.change(UNIT, active_state="inactive", sub_state="dead", kill_mode="process")
    result = bench.interrupted(request, started, phase="stopped")
    assert prove_for(bench, action, result, 60).state is ProofState.PROVED
    assert verbs(bench) == ["start"]


def test_a_start_that_was_made_before_the_agent_died_is_not_made_again(bench: Bench) -> None:
    action, request, started = Restart(), bench.request(), bench.clock.now()
    bench.second()
    bench.systemd.change(UNIT, active_state="inactive", sub_state="dead", active_enter=bench.clock.now().boottime)
    result = bench.interrupted(request, started, phase="starting")
    assert prove_for(bench, action, result, 60).state is ProofState.DISPROVED
    assert verbs(bench) == []


def test_a_request_without_a_service_is_skipped(bench: Bench) -> None:
    assert Restart().run(bench.request(service=None), bench).state is ResultState.SKIPPED
    assert Restart().run(bench.request(service="gone"), bench).state is ResultState.SKIPPED


def test_the_proof_may_take_the_services_time_to_ready_and_settle(bench: Bench) -> None:
    action = Restart()
    assert action.proof_time(bench.request(), bench) == timedelta(minutes=30, seconds=10)
    short = bench.request(with_={"timeout": "1m", "settle": "5s"})
    assert action.proof_time(short, bench) == timedelta(seconds=65)


@pytest.fixture
def real_d_task(tmp_path: Path) -> Iterator[int]:
    """The pid of a real process in D: posix_spawn waits for its child, which opens a FIFO nobody writes to."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (
        "import os, sys\n"
        "print('up', flush=True)\n"
        "actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]\n"
        "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions), 0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(fifo)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        for _ in range(1_000_000):
            if stat.read_text().rpartition(")")[2].split()[0] == "D":
                break
        yield process.pid
        with fifo.open("w"):
            pass
        assert process.wait(10) == 0


def test_a_real_task_in_d_state_is_found_by_proc_alone(bench: Bench, real_d_task: int) -> None:
    bench.host.cgroup(CGROUP, real_d_task)
    proc = bench.paths.at("/proc")
    proc.rename(proc.with_name("fake-proc"))
    proc.symlink_to("/proc")
    result = Restart().run(bench.request(), bench)
    assert result.state is ResultState.FAILED
    assert result.facts["unkillable"] is True
    assert result.facts["pid"] == real_d_task
    assert verbs(bench) == []


def test_a_failed_unit_with_a_job_on_its_way_is_not_given_up(bench: Bench) -> None:
    action, request, started = Restart(), bench.request(), bench.clock.now()
    bench.systemd.change(UNIT, active_state="failed", result="signal", job=77)
    result = bench.interrupted(request, started)
    assert action.prove(request, result, bench).state is ProofState.NOT_YET
