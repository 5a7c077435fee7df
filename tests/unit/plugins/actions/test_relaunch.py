"""`relaunch` puts a service on the right GPUs or touches nothing, and proves what its processes hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from action_bench import UNIT
from gpu_actions import E5, GIB, GpuBench, address
from pydantic import ValidationError

from bandog import CanaryAnswer, ChildOutcome, Proof, ProofState, Readiness, Result, ResultState, overrides
from bandog.services.registry import Registry
from bandog_plugins.actions.relaunch import Relaunch, RelaunchWith


def file_of(gpus: GpuBench) -> str | None:
    place = overrides.path_of(gpus.paths.run, UNIT)
    return place.read_text() if place.exists() else None


def verbs(gpus: GpuBench) -> list[str]:
    return [job.verb for job in gpus.systemd.jobs]


def change(gpus: GpuBench, **fields: Any) -> None:
    """Change the service."""
    gpus.services.registry = Registry((replace(gpus.services.get("qwen"), **fields),))


def prove(gpus: GpuBench, action: Relaunch, result: Result, seconds: int = 60, **fields: Any) -> Proof:
    """Poll the proof every 2 s until it decides."""
    request = gpus.relaunch(**fields)
    proof = action.prove(request, result, gpus)
    for _ in range(seconds // 2):
        if proof.state is not ProofState.NOT_YET:
            break
        gpus.second()
        gpus.second()
        proof = action.prove(request, result, gpus)
    return proof


def test_the_service_comes_back_on_the_largest_set_without_the_card_and_holds_just_that(gpus: GpuBench) -> None:
    action = Relaunch()
    result = action.run(gpus.relaunch(), gpus)
    assert result.state is ResultState.DONE, result
    assert result.why.startswith(f"{UNIT} was restarted on 2 GPUs (17:00.0, 3d:00.0) without e5:00.0")
    assert verbs(gpus) == ["restart"]
    text = file_of(gpus)
    assert text is not None
    for line in (
        'CUDA_DEVICE_ORDER="PCI_BUS_ID"',
        'CUDA_VISIBLE_DEVICES="0,1"',
        'BANDOG_GPU_UUIDS="GPU-17,GPU-3d"',
        'TP_SIZE="2"',
    ):
        assert line in text.splitlines()
    proof = prove(gpus, action, result)
    assert proof.state is ProofState.PROVED
    assert "holds 0000:17:00.0, 0000:3d:00.0 and no other, as the driver tells" in proof.why
    assert "canary: scripted" in proof.why


def test_the_card_is_kept_out_for_what_was_found(gpus: GpuBench) -> None:
    result = Relaunch().run(gpus.relaunch(), gpus)
    exclusion = gpus.gpus.find(E5).exclusion
    assert result.state is ResultState.DONE and exclusion is not None
    assert (exclusion.xid, exclusion.kind, exclusion.incident, exclusion.by) == (94, "nvidia.xid", 12, "incident 12")


def test_a_card_that_was_never_seen_is_left_out_of_this_start_only(gpus: GpuBench) -> None:
    del gpus.cards[E5]
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.DONE
    assert "it is left out of this start only: there is no GPU 0000:e5:00.0" in result.why


def test_the_card_stays_out_when_the_driver_does_not_answer(gpus: GpuBench) -> None:
    Relaunch().run(gpus.relaunch(with_={"without": "excluded"}), gpus)
    gpus.preflight = ChildOutcome(code=None, timed_out=True)
    assert Relaunch().run(gpus.relaunch(), gpus).state is ResultState.FAILED
    assert gpus.gpus.find(E5).exclusion is not None


def test_the_intent_is_on_record_before_the_file_and_the_job(gpus: GpuBench) -> None:
    order = []
    gpus.systemd.on_job = lambda job: order.append((job.verb, file_of(gpus) is not None, len(gpus.notes)))
    Relaunch().run(gpus.relaunch(), gpus)
    assert order == [("restart", True, 1)]
    assert gpus.notes[0][1] == {
        "without": [E5],
        "gpus": [address("17"), address("3d")],
        "visible": "0,1",
        "profile": 1,
    }


def test_the_proof_goes_on_from_the_note_where_the_agent_died(gpus: GpuBench) -> None:
    started = gpus.clock.now()
    gpus.second()
    Relaunch().run(gpus.relaunch(), gpus)
    result = gpus.interrupted(gpus.relaunch(), started, **gpus.notes[0][1])
    assert prove(gpus, Relaunch(), result).state is ProofState.PROVED
    gpus.holds = list(gpus.cards)
    assert prove(gpus, Relaunch(), result).state is ProofState.DISPROVED


def test_a_second_finding_about_the_same_card_restarts_nothing(gpus: GpuBench) -> None:
    action = Relaunch()
    action.run(gpus.relaunch(), gpus)
    gpus.second()
    result = action.run(gpus.relaunch(id="13.1", kind="gpu.missing", facts={}), gpus)
    assert result.state is ResultState.DONE and "already; nothing to do but prove it" in result.why
    assert verbs(gpus) == ["restart"]
    assert prove(gpus, action, result, id="13.1").state is ProofState.PROVED


@pytest.mark.parametrize("what", ["another card", "not ready", "wrong cards"])
def test_what_is_in_force_counts_only_while_it_does_its_work(gpus: GpuBench, what: str) -> None:
    Relaunch().run(gpus.relaunch(), gpus)
    gpus.second()
    if what == "not ready":
        gpus.services.readiness["qwen"] = Readiness(ready=False, why="refused")
    if what == "wrong cards":
        gpus.holds = list(gpus.cards)
    request = gpus.relaunch(with_={"without": address("17")}) if what == "another card" else gpus.relaunch()
    Relaunch().run(request, gpus)
    assert verbs(gpus) == ["restart", "restart"]


def test_a_lost_card_shifts_the_numbers(gpus: GpuBench) -> None:
    gpus.cards[address("17")]["lost"] = True
    result = Relaunch().run(gpus.relaunch(with_={"without": address("17")}), gpus)
    assert result.facts["gpus"] == [address("3d"), address("65")]
    assert result.facts["visible"] == "0,1"


def test_cudas_own_count_is_believed_over_ours(gpus: GpuBench) -> None:
    gpus.cards[address("17")]["lost"] = True
    gpus.cuda = list(gpus.cards)
    result = Relaunch().run(gpus.relaunch(with_={"without": address("17")}), gpus)
    assert result.facts["visible"] == "1,2"


def test_what_is_excluded_already_is_left_out_without_being_named(gpus: GpuBench) -> None:
    Relaunch().run(gpus.relaunch(with_={"without": "excluded"}), gpus)
    assert (overrides.in_force(gpus.paths.run, UNIT) or pytest.fail("none")).gpus == tuple(gpus.cards)
    gpus.gpus.exclude(E5, reason="I do not trust it", by="anna")
    result = Relaunch().run(gpus.relaunch(with_={"without": "excluded"}), gpus)
    assert result.facts["gpus"] == [address("17"), address("3d")] and result.facts["without"] == [E5]


def test_too_few_healthy_cards_fail_closed_and_say_what_is_needed(gpus: GpuBench) -> None:
    gpus.cards[address("17")]["lost"] = True
    gpus.cards[address("3d")]["recovery"] = "reset"
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED
    assert result.why == (
        "qwen needs 2 healthy GPUs of the host for its smallest profile and has 1: "
        "17:00.0 cannot be used: it has fallen off the bus; 3d:00.0 cannot be used: the driver asks for reset; "
        f"e5:00.0 is left out; {UNIT} was not touched"
    )
    assert file_of(gpus) is None and verbs(gpus) == []


def test_an_older_file_stays_when_no_profile_can_be_satisfied(gpus: GpuBench) -> None:
    Relaunch().run(gpus.relaunch(), gpus)
    before = file_of(gpus)
    gpus.cards[address("17")]["lost"] = True
    gpus.cards[address("65")]["lost"] = True
    assert Relaunch().run(gpus.relaunch(), gpus).state is ResultState.FAILED
    assert file_of(gpus) == before and verbs(gpus) == ["restart"]


def test_a_card_that_somebody_else_holds_is_not_taken_and_its_holder_is_named(gpus: GpuBench) -> None:
    gpus.host.task(700, "python3", cgroup="/system.slice/jupyter.service")
    gpus.host.task(701, "dcgm-exporter", cgroup="/system.slice/dcgm.service")
    gpus.cards[address("17")]["holders"] = [{"pid": 700, "memory": 2 * GIB}]
    gpus.cards[address("3d")]["holders"] = [{"pid": 701, "memory": GIB}, {"pid": 99999, "memory": GIB}]
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.facts["gpus"] == [address("3d"), address("65")]
    gpus.cards[address("65")]["holders"] = [{"pid": 700, "memory": 2 * GIB}]
    overrides.drop(gpus.paths.run, UNIT)
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED
    assert "17:00.0 is held by python3 (pid 700, jupyter.service), 2048 MiB" in result.why


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (ChildOutcome(code=None, timed_out=True), "the driver gives no answer within 25 s"),
        (ChildOutcome(code=None, timed_out=True, stuck=True), "cannot be killed"),
        (ChildOutcome(code=1, err=b"Traceback\nImportError: no pynvml\n"), "ended with 1: ImportError: no pynvml"),
        (ChildOutcome(code=0, out=b'{"nvml": {"round": 2}}\n{"done": true}\n'), "rubbish"),
        (ChildOutcome(code=0, out=b"[[[\n\xff\n"), "ended with 0"),
    ],
)
def test_a_driver_that_does_not_answer_fails_the_step_and_touches_nothing(
    gpus: GpuBench, outcome: ChildOutcome, words: str
) -> None:
    gpus.preflight = outcome
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED
    assert words in result.why and f"{UNIT} was not touched" in result.why
    assert file_of(gpus) is None and verbs(gpus) == []


def test_a_mismatch_of_driver_and_library_is_found_before_it_kills_the_service(gpus: GpuBench) -> None:
    gpus.driver = {"disk": "575.51.03"}
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED
    assert "driver and library differ: kernel module 570.86.15, library 575.51.03" in result.why
    assert verbs(gpus) == []


def test_a_card_that_does_not_compute_fails_the_step(gpus: GpuBench) -> None:
    gpus.cuda, gpus.ill = list(gpus.cards), {address("3d"): "cuMemAlloc_v2: an illegal access (700)"}
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED
    assert "0000:3d:00.0 does not compute: cuMemAlloc_v2: an illegal access (700)" in result.why
    assert verbs(gpus) == []


def test_a_child_of_an_earlier_check_that_is_stuck_for_ever_is_not_joined_by_another(gpus: GpuBench) -> None:
    import os

    group = "/system.slice/bandog.service"
    gpus.host.task(os.getpid(), "bandog", cgroup=group)
    gpus.host.task(800, "bandog-check", "D", cgroup=group)
    gpus.host.cgroup(group, 800)
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED and "cannot be killed" in result.why
    assert gpus.rounds == 0


def test_a_unit_that_does_not_read_our_file_is_skipped_with_the_way_out(gpus: GpuBench) -> None:
    gpus.systemd.change(UNIT, environment_files=("/etc/default/vllm",))
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.SKIPPED and f"bandog adopt {UNIT}" in result.why


def test_a_service_without_profiles_keeps_its_gpus(gpus: GpuBench) -> None:
    change(gpus, profiles=())
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.SKIPPED and "no profiles" in result.why


def test_variables_alone_need_no_profile(gpus: GpuBench) -> None:
    change(gpus, profiles=())
    action, with_ = Relaunch(), {"env": {"NCCL_P2P_DISABLE": 1}}
    result = action.run(gpus.relaunch(with_=with_), gpus)
    assert result.state is ResultState.DONE
    assert result.why.endswith("with NCCL_P2P_DISABLE set")
    assert 'NCCL_P2P_DISABLE="1"' in (file_of(gpus) or "")
    assert prove(gpus, action, result, with_=with_).state is ProofState.PROVED


@pytest.mark.parametrize(
    "facts", [{"xid": 145, "action": "reset_gpu"}, {"xid": 74, "action": "reset_fabric"}], ids=["145", "74"]
)
def test_a_fault_of_the_fabric_never_costs_a_card(gpus: GpuBench, facts: dict[str, Any]) -> None:
    result = Relaunch().run(gpus.relaunch(facts=facts), gpus)
    assert result.state is ResultState.SKIPPED and "whole fabric" in result.why
    assert gpus.gpus.known() == ()


@pytest.mark.parametrize("word", ["host", "task:python3", "", "3", "0000:zz:00.0"])
def test_what_names_no_card_is_skipped(gpus: GpuBench, word: str) -> None:
    result = Relaunch().run(gpus.relaunch(with_={"without": word}), gpus)
    assert result.state is ResultState.SKIPPED and "names no GPU" in result.why


def test_a_card_may_be_named_by_its_uuid_or_in_any_spelling(gpus: GpuBench) -> None:
    Relaunch().run(gpus.relaunch(with_={"without": "excluded"}), gpus)
    result = Relaunch().run(gpus.relaunch(with_={"without": ["gpu-E5", "00000000:65:00.0"]}), gpus)
    assert result.facts["without"] == [address("65"), E5]
    assert result.facts["gpus"] == [address("17"), address("3d")]


def test_a_drill_leaves_no_trace_in_the_inventory(gpus: GpuBench) -> None:
    Relaunch().run(gpus.relaunch(with_={"without": "excluded"}), gpus)
    result = Relaunch().run(gpus.relaunch(drill=True), gpus)
    assert result.facts["gpus"] == [address("17"), address("3d")]
    assert gpus.gpus.find(E5).exclusion is None


def test_a_stuck_task_leaves_everything_as_it_is(gpus: GpuBench) -> None:
    gpus.stuck()
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED and result.facts["unkillable"] is True
    assert file_of(gpus) is None and verbs(gpus) == []


def test_a_wrapper_that_sets_the_variable_itself_is_found_and_named(gpus: GpuBench) -> None:
    action = Relaunch()
    gpus.follows, gpus.environ = False, "0,1,2,3"
    result = action.run(gpus.relaunch(), gpus)
    proof = prove(gpus, action, result)
    assert proof.state is ProofState.DISPROVED
    assert "it holds 0000:65:00.0, 0000:e5:00.0 as well: VLLM::Worker_TP (pid 5100" in proof.why
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 in place of 0,1; what starts it overrides the variable" in proof.why
    assert file_of(gpus) is not None, "the card stays out of the next start"


def test_without_the_drivers_word_the_open_files_prove_it(gpus: GpuBench) -> None:
    action = Relaunch()
    result = action.run(gpus.relaunch(), gpus)
    for card in gpus.cards.values():
        card["holders"] = None
    folder = gpus.paths.proc / "5100/fd"
    folder.mkdir()
    for number, target in enumerate(["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]):
        (folder / str(number)).symlink_to(target)
    gpus.clock.advance(timedelta(seconds=1))
    proof = prove(gpus, action, result)
    assert proof.state is ProofState.PROVED and "has 0000:17:00.0, 0000:3d:00.0 open and no other" in proof.why


@pytest.mark.parametrize(
    ("given", "state"), [("0,1", ProofState.PROVED), ("0,1,2,3", ProofState.DISPROVED)], ids=["ours", "another's"]
)
def test_more_open_files_than_wanted_are_judged_by_the_environment(
    gpus: GpuBench, given: str, state: ProofState
) -> None:
    action = Relaunch()
    result = action.run(gpus.relaunch(), gpus)
    gpus.environ = given
    for card in gpus.cards.values():
        card["holders"] = None
    folder = gpus.paths.proc / "5100/fd"
    folder.mkdir()
    for number in range(4):
        (folder / str(number)).symlink_to(f"/dev/nvidia{number}")
    gpus.clock.advance(timedelta(seconds=1))
    assert prove(gpus, action, result).state is state


def test_nothing_is_proved_while_the_canary_gets_no_tokens(gpus: GpuBench) -> None:
    action = Relaunch()
    result = action.run(gpus.relaunch(), gpus)
    gpus.services.canaries["qwen"] = CanaryAnswer(ok=None, why="no answer within 10 s")
    proof = prove(gpus, action, result)
    assert proof.state is ProofState.NOT_YET and "canary: no answer" in proof.why
    with_ = {"without": f"gpu:{E5}", "canary": False}
    assert prove(gpus, action, result, with_=with_).state is ProofState.PROVED


def test_nothing_is_proved_before_a_look_that_is_younger_than_the_start(gpus: GpuBench) -> None:
    action = Relaunch()
    result = action.run(gpus.relaunch(), gpus)
    gpus.preflight = ChildOutcome(code=None, timed_out=True)
    proof = prove(gpus, action, result)
    assert proof.state is ProofState.NOT_YET and "has not told" in proof.why
    gpus.preflight = None
    assert prove(gpus, action, result).state is ProofState.PROVED


def test_a_service_that_is_not_ready_is_not_proved(gpus: GpuBench) -> None:
    action = Relaunch()
    result = action.run(gpus.relaunch(), gpus)
    gpus.services.readiness["qwen"] = Readiness(ready=False, why="refused")
    assert prove(gpus, action, result).state is ProofState.NOT_YET


def test_a_file_that_cannot_be_written_fails_the_step_and_touches_no_unit(gpus: GpuBench) -> None:
    (gpus.paths.run / "env").write_text("")
    result = Relaunch().run(gpus.relaunch(), gpus)
    assert result.state is ResultState.FAILED and "could not be written" in result.why
    assert verbs(gpus) == []


def test_the_step_takes_only_variables_that_can_be_set() -> None:
    for env in ({"CUDA_VISIBLE_DEVICES": "0"}, {"A-B": "1"}, {"A": "x\0"}):
        with pytest.raises(ValidationError):
            RelaunchWith.model_validate({"env": env})
