"""The stand-in model server behaves as vLLM does where a watchdog looks: processes, start, pages, faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fakenvml import State
from simhost.vllm import FakeVllm

Start = Callable[..., FakeVllm]
GIB = 1 << 30


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers that end with the test."""
    with contextlib.ExitStack() as stack:

        def one(*options: str, **given: object) -> FakeVllm:
            server = FakeVllm(tmp_path, *options, **given)  # type: ignore[arg-type]  # passed on as they are
            stack.callback(server.close)
            return server

        yield one


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeVllm]:
    """A server of two ranks for whatever does not end it."""
    one = FakeVllm(tmp_path_factory.mktemp("common"), "--tensor-parallel-size", "2")
    try:
        yield one.ready()
    finally:
        one.close()


@pytest.fixture
def server(common: FakeVllm) -> Iterator[FakeVllm]:
    """That server as it was: well, and with nothing to do."""
    yield common
    common.mode("normal")
    assert common.complete(tokens=1) == 200  # whatever came before it is in the batch now, or done
    common.until(lambda: common.metrics()["vllm:num_requests_running"] == 0)


class Machine:
    """Four simulated GPUs of 80 GiB, called GPU-0 to GPU-3."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = State(root / "state.json", 4)
        self.state.change({f"gpus.{number}.uuid": f"GPU-{number}" for number in range(4)})
        (root / "dev").mkdir()
        for number in range(4):
            (root / f"dev/nvidia{number}").touch()

    @property
    def env(self) -> dict[str, str]:
        """The environment of a process on this machine."""
        return {
            "FAKENVML_STATE": str(self.state.path),
            "FAKEGPU_DEV": str(self.root / "dev"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def claims(self) -> dict[str, int]:
        """Return the bytes that live processes hold, by UUID."""
        held: dict[str, int] = {}
        for claim in self.state.claims.glob("[0-9]*"):
            if Path(f"/proc/{claim.name}").exists():
                uuid, size = claim.read_text().split()
                held[uuid] = held.get(uuid, 0) + int(size)
        return held

    def holders(self) -> set[int]:
        """Return the processes that hold a GPU."""
        return {int(claim.name) for claim in self.state.claims.glob("[0-9]*")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def hang(server: FakeVllm) -> None:
    """Leave a client waiting for a completion."""
    threading.Thread(target=server.complete, daemon=True).start()


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


# --- processes and pages ----------------------------------------------------------------------------


def test_it_has_the_processes_of_vllm(server: FakeVllm) -> None:
    pids = server.mode()["pids"]
    assert [comm(pids["engine"]), *map(comm, pids["workers"])] == ["VLLM::EngineCor", *["VLLM::Worker_TP"] * 2]
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") for pid in pids["workers"]]
    assert titles == [b"VLLM::Worker_TP0", b"VLLM::Worker_TP1"]


def test_nobody_listens_while_it_loads(start: Start) -> None:
    server = start(env={"FAKEVLLM_LOAD": "1"})
    server.until(lambda: Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text())
    assert server.status("/health") == 0
    assert server.ready().status("/health") == 200


def test_a_port_in_use_ends_it_before_it_loads(start: Start) -> None:
    first = start().ready()
    second = start(port=first.port, env={"FAKEVLLM_LOAD": "60"})
    assert second.ended() == 1
    assert "Address already in use" in second.log


def test_completions_move_the_counters(server: FakeVllm) -> None:
    before = server.metrics()
    assert server.get("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})[0] == 200
    assert server.complete(tokens=8) == 200
    after = server.metrics()
    moved = {name.removeprefix("vllm:"): value - before[name] for name, value in after.items()}
    assert (moved["generation_tokens_total"], moved["iteration_tokens_total_count"]) == (24, 24)
    assert moved["prompt_tokens_total"] > 0
    assert after["vllm:num_requests_running"] == 0
    page = server.get("/metrics")[1].decode()
    assert 'vllm:request_success_total{finished_reason="length",engine="0",model_name="qwen"} ' in page
    assert 'vllm:iteration_tokens_total_bucket{engine="0",model_name="qwen",le="+Inf"} ' in page


def test_sglang_counts_under_its_own_names(start: Start) -> None:
    server = start("--dialect", "sglang").ready()
    assert server.complete(tokens=8) == 200
    assert server.metrics()["sglang:generation_tokens_total"] == 8
    assert server.status("/health_generate") == 200


@pytest.mark.parametrize(
    ("body", "status"), [({"model": "other"}, 404), ({"prompt": "x", "max_tokens": -1}, 400), (["no object"], 400)]
)
def test_a_wrong_request_is_refused(server: FakeVllm, body: object, status: int) -> None:
    code, answer = server.get("/v1/completions", body)
    assert code == status
    assert json.loads(answer)["error"]["message"]


def test_a_key_guards_what_lies_below_v1(start: Start) -> None:
    server = start("--api-key", "tok-4711").ready()
    assert [server.status("/health"), server.status("/metrics"), server.status("/v1/models")] == [200, 200, 401]
    assert server.get("/v1/models", key="wrong")[0] == 401
    assert server.get("/v1/models", key="tok-4711")[0] == 200


def test_a_client_that_leaves_is_forgotten(server: FakeVllm) -> None:
    server.mode("slow", "0.05")
    assert server.complete(tokens=1000, within=0.3) == 0
    gone = 'finished_reason="abort",engine="0",model_name="qwen"} 1.0'
    server.until(lambda: gone in server.get("/metrics")[1].decode())
    server.mode("normal")
    assert server.complete() == 200
    assert server.metrics()["vllm:num_requests_running"] == 0


def test_a_stop_is_clean_and_leaves_nothing(start: Start, machine: Machine) -> None:
    server = start("--tensor-parallel-size", "4", env=machine.env).ready()
    pids = server.mode()["pids"]
    server.process.terminate()
    assert server.ended() == 0
    assert [state(pid) for pid in (pids["engine"], *pids["workers"])] == ["gone"] * 5
    assert list((machine.root / "claims").iterdir()) == []


def test_a_stop_of_all_its_processes_at_once_is_no_fault(start: Start) -> None:
    server = start("--tensor-parallel-size", "2").ready()
    os.killpg(server.process.pid, signal.SIGTERM)
    assert server.ended() == 0


def test_a_kill_of_the_front_leaves_the_workers_on_their_gpus(start: Start, machine: Machine) -> None:
    server = start("--tensor-parallel-size", "2", env=machine.env).ready()
    pids = server.mode()["pids"]
    server.process.kill()
    server.ended()
    assert [state(pid) in "SR" for pid in (pids["engine"], *pids["workers"])] == [True] * 3
    again = start("--tensor-parallel-size", "2", env=machine.env, port=server.port)
    assert again.ended() == 1
    assert "Free memory on device cuda:0 (8.00/80.00 GiB) on startup is less than desired GPU memory" in again.log
    os.kill(pids["engine"], signal.SIGKILL)  # takes the workers along
    server.until(lambda: machine.claims() == {})
    assert start("--tensor-parallel-size", "2", env=machine.env, port=server.port).ready().complete() == 200


# --- GPUs -------------------------------------------------------------------------------------------


def test_each_rank_holds_its_gpu(start: Start, machine: Machine) -> None:
    env = machine.env | {"CUDA_VISIBLE_DEVICES": "3,1", "TP_SIZE": "2"}
    server = start(env=env).ready()
    answer = server.mode()
    assert answer["gpus"] == ["GPU-3", "GPU-1"]
    assert machine.claims() == {"GPU-3": 72 * GIB, "GPU-1": 72 * GIB}
    worker = answer["pids"]["workers"][0]
    links = {link.readlink() for link in Path(f"/proc/{worker}/fd").iterdir()}
    assert machine.root / "dev/nvidia3" in links


@pytest.mark.parametrize(
    ("env", "options", "text"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, (), "ValueError: invalid literal for int() with base 10: 'GPU-1'"),
        ({"CUDA_VISIBLE_DEVICES": "0,9,1", "TP_SIZE": "2"}, (), "larger than the number of available GPUs (1)"),
        ({"CUDA_VISIBLE_DEVICES": "1,1", "TP_SIZE": "2"}, (), "No CUDA GPUs are available"),
        ({"CUDA_VISIBLE_DEVICES": ""}, (), "No CUDA GPUs are available"),
        ({"TP_SIZE": "8"}, (), "World size (8) is larger than the number of available GPUs (4) in this node"),
        ({}, ("-tp", "3"), "Total number of attention heads (64) must be divisible by tensor parallel size (3)."),
    ],
)
def test_what_cannot_be_served_is_refused(
    start: Start, machine: Machine, env: dict[str, str], options: tuple[str, ...], text: str
) -> None:
    server = start(*options, env=machine.env | env)
    assert server.ended() == 1
    assert text in server.log


def test_a_lost_gpu_takes_the_server_with_it(start: Start, machine: Machine) -> None:
    server = start("--tensor-parallel-size", "4", env=machine.env).ready()
    machine.state.set("gpus.2.lost", True)
    assert server.ended() == 1
    assert "CUDA error: unspecified launch failure" in server.log
    assert "EngineDeadError" in server.log
    assert machine.claims() == {}


def test_a_server_on_other_gpus_lives_on(start: Start, machine: Machine) -> None:
    server = start(env=machine.env | {"CUDA_VISIBLE_DEVICES": "0"}).ready()
    other = start(env=machine.env | {"CUDA_VISIBLE_DEVICES": "1"}).ready()
    machine.state.set("gpus.1.lost", True)
    assert other.ended() == 1
    assert server.complete() == 200


# --- the races of a start ---------------------------------------------------------------------------

HALF = {"GPU_MEMORY_UTILIZATION": "0.42", "FAKEVLLM_LOAD": "0.1", "FAKEVLLM_PROFILE": "0.5"}


def test_memory_that_a_neighbour_releases_while_it_profiles_ends_it(start: Start, machine: Machine) -> None:
    first = start(env=machine.env | HALF)
    first.until(lambda: machine.claims().get("GPU-0", 0) > 40 * GIB)  # the peak of its profiling
    (worker,) = machine.holders()
    os.kill(worker, signal.SIGSTOP)
    second = start(env=machine.env | HALF)
    second.until(lambda: len(machine.holders()) == 2)  # it has looked and begun to load
    (other,) = machine.holders() - {worker}
    os.kill(other, signal.SIGSTOP)
    os.kill(worker, signal.SIGCONT)
    assert first.ready().complete() == 200
    os.kill(other, signal.SIGCONT)
    assert second.ended() == 1
    assert "Error in memory profiling. Initial free memory 38.40 GiB, current free memory 42.40 GiB." in second.log


def test_two_that_start_at_once_do_not_both_come_up(start: Start, machine: Machine) -> None:
    servers = [start(env=machine.env | HALF | {"FAKEVLLM_PROFILE": "3"}) for _ in range(2)]
    servers[0].until(lambda: any(one.process.poll() is not None for one in servers))
    assert any("out of memory" in one.log or "memory profiling" in one.log for one in servers)


def test_one_after_the_other_both_come_up(start: Start, machine: Machine) -> None:
    for _ in range(2):
        assert start(env=machine.env | HALF).ready().complete() == 200


# --- how it misbehaves ------------------------------------------------------------------------------


def test_a_stall_in_a_batch_leaves_the_gauges_up_and_health_green(server: FakeVllm) -> None:
    at_first = server.metrics()["vllm:iteration_tokens_total_count"]
    server.mode("stall")
    hang(server)
    server.until(lambda: server.metrics()["vllm:num_requests_running"] == 1)
    assert server.complete(within=0.3) == 0
    assert server.metrics()["vllm:iteration_tokens_total_count"] == at_first + 1
    assert server.metrics()["vllm:num_requests_running"] == 1
    assert (server.status("/health"), server.status("/v1/models")) == (200, 200)
    server.mode("normal")
    assert server.complete() == 200


def test_a_silent_stall_says_that_nothing_runs(server: FakeVllm) -> None:
    before = server.metrics()
    server.mode("stall", "silent")
    assert server.complete(within=0.3) == 0
    after = server.metrics()
    assert after["vllm:num_requests_running"] == 0
    assert after["vllm:iteration_tokens_total_count"] == before["vllm:iteration_tokens_total_count"]


def test_a_dead_decoder_still_takes_prompts(server: FakeVllm) -> None:
    server.mode("stall", "decode")
    before = server.metrics()

    def running(count: int) -> bool:
        return server.metrics()["vllm:num_requests_running"] == count

    for clients in (1, 2):
        hang(server)
        server.until(partial(running, clients))
    after = server.metrics()
    assert after["vllm:prompt_tokens_total"] > before["vllm:prompt_tokens_total"]
    assert after["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"]


@pytest.mark.parametrize("who", ["engine", "worker"])
def test_a_stopped_process_stalls_it_as_in_life(server: FakeVllm, who: str) -> None:
    pids = server.mode()["pids"]
    pid = pids["engine"] if who == "engine" else pids["workers"][1]
    os.kill(pid, signal.SIGSTOP)
    assert server.complete(within=0.3) == 0
    assert server.metrics()["vllm:num_requests_running"] == 0
    assert server.status("/health") == 200
    os.kill(pid, signal.SIGCONT)
    assert server.complete() == 200


def test_a_slow_server_moves(server: FakeVllm) -> None:
    before = server.metrics()["vllm:generation_tokens_total"]
    server.mode("slow", "0.1")
    hang(server)
    server.until(lambda: server.metrics()["vllm:generation_tokens_total"] >= before + 2)
    assert server.metrics()["vllm:num_requests_running"] == 1


def test_a_worker_in_d_state_holds_everything_up(start: Start, machine: Machine) -> None:
    server = start("--tensor-parallel-size", "2", env=machine.env).ready()
    worker = server.mode("d-state", "1")["pids"]["workers"][1]
    server.until(lambda: state(worker) == "D")
    os.kill(worker, signal.SIGTERM)
    assert server.complete(within=0.3) == 0
    assert (state(worker), server.status("/health")) == ("D", 200)
    assert set(machine.claims()) == {"GPU-0", "GPU-1"}
    server.mode("normal")
    assert server.ended() == 1  # let go, it heeds the SIGTERM


def test_a_stop_kills_a_worker_in_d_state(start: Start) -> None:
    server = start(env={"FAKEVLLM_PATIENCE": "0.5"}).ready()
    worker = server.mode("d-state")["pids"]["workers"][0]
    server.until(lambda: state(worker) == "D")
    server.process.terminate()
    assert server.ended() == 0
    assert state(worker) == "gone"


def test_a_dying_worker_ends_the_server_with_the_error_of_ecc(start: Start) -> None:
    server = start("--tensor-parallel-size", "2").ready()
    server.mode("die", "1")
    assert server.ended() == 1
    assert "uncorrectable ECC error encountered" in server.log


def test_a_file_sets_the_mode_too(server: FakeVllm) -> None:
    server.control.write_text("rubbish empty\n")
    server.until(lambda: server.mode()["argument"] == "empty")
    assert json.loads(server.get("/v1/completions", {"prompt": "x"})[1])["choices"] == []


def test_an_unknown_mode_is_refused(server: FakeVllm) -> None:
    for mode, argument in (("panic", ""), ("stall", "loudly"), ("die", "x")):
        assert server.get("/lab/mode", {"mode": mode, "argument": argument})[0] == 400
    assert server.mode()["mode"] == "normal"
