"""The fixture of the action tests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from action_bench import UNIT, Bench
from gpu_actions import GpuBench

from bandog.services.registry import Ready, Service, Start
from bandog.testing import FakeHost, FakeServices


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A host with one running service, `qwen`, up for an hour before the test begins."""
    host = FakeHost(tmp_path / "host")
    service = Service(
        name="qwen",
        unit=UNIT,
        start=Start(timeout=timedelta(minutes=30)),
        ready=Ready(http="http://127.0.0.1:8000/health"),
    )
    site = Bench(host=host, services=FakeServices(service))
    site.systemd.add(UNIT, restart="always")
    host.clock.advance(timedelta(hours=1))
    return site


@pytest.fixture
def gpus(tmp_path: Path) -> GpuBench:
    """The same host with four GPUs, all held by `qwen`, which has profiles for four and two."""
    host = FakeHost(tmp_path / "host")
    service = Service(
        name="qwen",
        unit=UNIT,
        gpus="all",
        start=Start(timeout=timedelta(minutes=30)),
        ready=Ready(http="http://127.0.0.1:8000/health"),
        canary={"openai": "http://127.0.0.1:8000"},
        profiles=({"count": 4, "env": {"TP_SIZE": "4"}}, {"count": 2, "env": {"TP_SIZE": "2"}}),
    )
    site = GpuBench(host=host, services=FakeServices(service))
    site.systemd.add(UNIT, restart="always")
    site.fill()
    host.clock.advance(timedelta(hours=1))
    return site
