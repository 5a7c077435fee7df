"""A simulated unit runs fakevllm: its environment file decides at each start, and a stop takes everything along."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakevllm.processes import alive
from simhost.sink import free_port
from simhost.units import SimulatedSystemd, Unit, environment_of, expanded
from simhost.vllm import Client, command

SOON = timedelta(seconds=10)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[SimulatedSystemd]:
    one = SimulatedSystemd({"vllm.service": command(free_port(), "--tensor-parallel-size", "${TP_SIZE}", "$MORE")})
    unit = one.units["vllm.service"]
    unit.environment = {"TP_SIZE": "2", "FAKEVLLM_LOAD": "0", "FAKEVLLM_PROFILE": "0"}
    unit.environment_file = tmp_path / "vllm.env"
    try:
        yield one
    finally:
        one.shutdown()


def client(systemd: SimulatedSystemd) -> Client:
    """Return what asks the unit's server."""
    argv = systemd.units["vllm.service"].argv
    return Client(int(argv[argv.index("--port") + 1]))


def test_a_restart_reads_the_file_and_leaves_no_worker(systemd: SimulatedSystemd, tmp_path: Path) -> None:
    systemd.boot("vllm.service")
    server = client(systemd)
    server.until(lambda: server.status("/health") == 200)
    before = server.mode()["pids"]["workers"]
    assert len(before) == 2
    assert asyncio.run(systemd.unit_of_pid(before[1])) == "vllm.service"
    (tmp_path / "vllm.env").write_text('# bandog\nTP_SIZE="1"\nMORE="--max-model-len 77"\n')
    asyncio.run(systemd.restart("vllm.service", deadline=SOON))
    server.until(lambda: server.status("/health") == 200)
    after = server.mode()["pids"]["workers"]
    assert len(after) == 1
    assert b'"max_model_len": 77' in server.get("/v1/models")[1]
    assert not any(map(alive, before))


def test_a_crash_leaves_no_worker_either(systemd: SimulatedSystemd) -> None:
    systemd.boot("vllm.service")
    server = client(systemd)
    server.until(lambda: server.status("/health") == 200)
    pids = server.mode()["pids"]
    systemd.crash("vllm.service")
    server.until(lambda: not any(map(alive, (pids["engine"], *pids["workers"]))))


def test_variables_stand_for_parts_or_for_words() -> None:
    unit = Unit(argv=(), environment={"A": "1", "B": "two words"})
    assert environment_of(unit) == {"A": "1", "B": "two words"}
    assert expanded(["x", "n=${A}", "${B}", "$B", "$C", "$A$B"], unit.environment) == [
        "x",
        "n=1",
        "two words",
        "two",
        "words",
        "$A$B",
    ]
