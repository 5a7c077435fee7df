"""`reset-gpu` drains a card, resets it by a real child process, and starts again whatever comes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from action_bench import UNIT
from gpu_actions import E5, GIB, GpuBench

from bandog import ChildOutcome, JobOutcome, Proof, ProofState, Readiness, ResultState
from bandog.host.child import Children
from bandog.pluginloader import discover
from bandog_plugins.actions.reset_gpu import ResetGpu, ResetOptions

SMI = """#!/bin/sh
echo "$@" >> "$0.calls"
{body}
"""


@dataclass
class Resetting(GpuBench):
    """The bench of GPUs, on which nvidia-smi is a script of the test's, run as a real child."""

    made: Children = field(default_factory=lambda: Children(term_grace=timedelta(milliseconds=100)))
    patience: timedelta = timedelta(seconds=10)

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        if argv[0] != "nvidia-smi":
            return super().child(argv, deadline=deadline, stdin=stdin, limit=limit, env=env)
        outcome = self.made.run(argv, deadline=min(deadline, self.patience), limit=limit, env=env)
        if outcome.ok:
            self.cards[E5].pop("recovery", None)
        return outcome


@pytest.fixture
def bench(gpus: GpuBench) -> Iterator[Resetting]:
    one = Resetting(host=gpus.host, systemd=gpus.systemd, services=gpus.services, cards=gpus.cards, holds=gpus.holds)
    one.cards[E5]["recovery"] = "reset"
    yield one
    one.made.close()


def action(tmp_path: Path, body: str = "exit 0") -> ResetGpu:
    """Return the action, switched on, with an nvidia-smi that does `body`."""
    script = tmp_path / "bin/nvidia-smi"
    script.parent.mkdir()
    script.write_text(SMI.format(body=body))
    script.chmod(0o755)
    path = f"{script.parent}:{os.environ['PATH']}"
    return ResetGpu(ResetOptions.model_validate({"enabled": True, "environment": {"PATH": path}}))


def calls(tmp_path: Path) -> list[str]:
    log = tmp_path / "bin/nvidia-smi.calls"
    return log.read_text().splitlines() if log.exists() else []


def verbs(bench: GpuBench) -> list[tuple[str, str]]:
    return [(job.verb, job.unit) for job in bench.systemd.jobs]


DRAINED = [("stop", UNIT), ("start", UNIT)]


def prove(bench: GpuBench, one: ResetGpu, result: object, seconds: int = 60) -> Proof:
    request = bench.request("reset-gpu", service=None)
    proof = one.prove(request, result, bench)  # type: ignore[arg-type]  # a Result
    for _ in range(seconds // 2):
        if proof.state is not ProofState.NOT_YET:
            break
        bench.second()
        bench.second()
        proof = one.prove(request, result, bench)  # type: ignore[arg-type]
    return proof


@pytest.mark.parametrize(("options", "loaded"), [({}, False), ({"reset-gpu": {"enabled": True}}, True)])
def test_it_is_off_until_the_main_file_switches_it_on(
    bench: Resetting, options: dict[str, dict[str, bool]], loaded: bool
) -> None:
    plugins = discover(bench.paths).build(options, bench.host)
    assert ("reset-gpu" in plugins.actions) is loaded
    if not loaded:
        [report] = [one for one in plugins.reports if one.name == "reset-gpu"]
        assert report.state == "off" and "{reset-gpu: {enabled: true}}" in report.why


def test_the_card_is_drained_reset_looked_at_and_its_services_started_again(bench: Resetting, tmp_path: Path) -> None:
    one = action(tmp_path)
    result = one.run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.DONE, result
    assert calls(tmp_path) == [f"--gpu-reset -i {E5}"]
    assert verbs(bench) == DRAINED
    assert bench.notes[0][1]["units"] == [UNIT]
    proof = prove(bench, one, result)
    assert proof.state is ProofState.PROVED and "is well and what uses it serves again" in proof.why


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'GPU Reset is not supported'; exit 3", "nvidia-smi ended with 3: GPU Reset is not supported"),
        ("exec sleep 60", "nvidia-smi did not end within"),
    ],
)
def test_a_reset_that_fails_still_brings_the_services_back(
    bench: Resetting, tmp_path: Path, body: str, words: str
) -> None:
    bench.patience = timedelta(milliseconds=300)
    result = action(tmp_path, body).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.FAILED and words in result.why
    assert verbs(bench) == DRAINED


def test_a_card_that_is_still_in_use_is_tried_once_more(bench: Resetting, tmp_path: Path) -> None:
    body = 'test "$(wc -l < "$0.calls")" -gt 1 || { echo "GPU 0000:E5:00.0 is in use by another client"; exit 1; }'
    result = action(tmp_path, body).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.DONE and len(calls(tmp_path)) == 2


def test_a_card_that_is_not_well_after_it_fails_the_step(bench: Resetting, tmp_path: Path) -> None:
    bench.cards[E5]["remap_failed"] = True
    bench.cards[E5]["rows"] = None
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.FAILED and "row remapping failed" in result.why
    assert verbs(bench) == DRAINED


def test_a_service_that_does_not_stop_ends_it_before_the_reset(bench: Resetting, tmp_path: Path) -> None:
    bench.systemd.script("stop", UNIT, JobOutcome(result="timeout", why="no end within 90 s"))
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.FAILED and "could not be stopped: timeout" in result.why
    assert calls(tmp_path) == [] and verbs(bench) == DRAINED


def test_a_service_that_does_not_come_back_is_named(bench: Resetting, tmp_path: Path) -> None:
    bench.systemd.script("start", UNIT, "failed")
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.FAILED and f"not started again: {UNIT}" in result.why


def test_somebody_elses_program_on_the_card_is_left_alone_and_named(bench: Resetting, tmp_path: Path) -> None:
    bench.host.task(700, "python3", cgroup="/system.slice/jupyter.service")
    bench.cards[E5]["holders"] = [{"pid": 700, "memory": GIB}]
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.SKIPPED and "python3 (pid 700, jupyter.service)" in result.why
    assert verbs(bench) == [] and calls(tmp_path) == []


@pytest.mark.parametrize("subject", ["host", "gpu:0000:aa:00.0"])
def test_what_is_no_card_here_is_skipped(bench: Resetting, tmp_path: Path, subject: str) -> None:
    result = action(tmp_path).run(bench.request("reset-gpu", service=None, subject=subject), bench)
    assert result.state is ResultState.SKIPPED and verbs(bench) == []


def test_a_lost_card_is_beyond_any_reset(bench: Resetting, tmp_path: Path) -> None:
    bench.cards[E5]["lost"] = True
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.SKIPPED and "no reset can reach it" in result.why


def test_a_unit_that_is_down_is_not_ours_to_start(bench: Resetting, tmp_path: Path) -> None:
    bench.systemd.change(UNIT, active_state="inactive", sub_state="dead", main_pid=None)
    bench.holds = []
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.DONE and verbs(bench) == []


def test_a_stuck_task_keeps_everything_as_it_is(bench: Resetting, tmp_path: Path) -> None:
    bench.stuck()
    result = action(tmp_path).run(bench.request("reset-gpu", service=None), bench)
    assert result.state is ResultState.FAILED and result.facts["unkillable"] is True
    assert verbs(bench) == []


def test_what_an_agent_that_died_had_stopped_is_started_by_the_proof(bench: Resetting, tmp_path: Path) -> None:
    started = bench.clock.now()
    bench.systemd.change(UNIT, active_state="inactive", sub_state="dead", main_pid=None)
    request = bench.request("reset-gpu", service=None)
    result = bench.interrupted(request, started, gpu=E5, units=[UNIT], services=["qwen"])
    one = action(tmp_path)
    assert one.prove(request, result, bench).state is ProofState.NOT_YET
    assert verbs(bench) == [("start", UNIT)]
    assert one.prove(request, result, bench).state is ProofState.DISPROVED


def test_it_is_not_proved_while_a_service_is_not_ready(bench: Resetting, tmp_path: Path) -> None:
    one = action(tmp_path)
    result = one.run(bench.request("reset-gpu", service=None), bench)
    bench.services.readiness["qwen"] = Readiness(ready=False, why="refused")
    assert prove(bench, one, result).state is ProofState.NOT_YET
