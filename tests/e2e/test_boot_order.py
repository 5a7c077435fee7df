"""Two models that race for the memory of one GPU: together one of them dies, in order none does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakenvml
from bandog.cli.configured import configuration
from bandog.cli.local_site import local_site
from bandog.host.paths import Paths
from bandog.pluginloader import discover
from bandog.services import start_order
from bandog.services.start_means import HostMeans
from bandog.services.start_one import Start as OneStart
from bandog.services.start_order import Line, Progress
from simhost.clock import WorldClock
from simhost.sink import free_port
from simhost.units import SimulatedSystemd, Unit
from simhost.vllm import Client, command
from simhost.world import NOON

FAST = 10.0
SERVICE = """\
service: {name}
unit: {name}.service
gpus: all
start: {{order: {order}, settle: 5s}}
ready: {{http: "{url}/health"}}
canary: {{openai: "{url}"}}
"""
HALF = {"GPU_MEMORY_UTILIZATION": "0.42", "FAKEVLLM_LOAD": "0.1", "FAKEVLLM_PROFILE": "0.5", "TP_SIZE": "1"}


class Host:
    """Four GPUs, two units whose models take 0.42 of the first each, and what starts them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cards = fakenvml.State(root / "state", 4)
        self.systemd = SimulatedSystemd({})
        environment = self.cards.env(fakenvml.build(root / "nvml"))
        (root / "etc/services.d").mkdir(parents=True)
        (root / "etc/bandog.yaml").write_text(f"plugins: {{gpu: {{environment: {json.dumps(environment)}}}}}\n")
        self.clients = {f"{name}.service": self._serve(name, order) for order, name in enumerate(("large", "small"))}
        self.lines: list[Line] = []

    def _serve(self, name: str, order: int) -> Client:
        client = Client(free_port())
        environment = {**HALF, "FAKENVML_STATE": str(self.cards.path)}
        self.systemd.units[f"{name}.service"] = Unit(argv=command(client.port), environment=environment)
        text = SERVICE.format(name=name, order=order, url=client.url)
        (self.root / f"etc/services.d/{name}.yaml").write_text(text)
        return client

    def together(self) -> bool:
        """Start both as a boot does; return whether both came to serve."""
        for unit in self.clients:
            self.systemd.boot(unit)
        for unit, client in self.clients.items():
            process = self.systemd.units[unit].process
            assert process is not None
            client.until(lambda client=client, process=process: client.status("/health") == 200 or process.poll())
        return all(client.status("/health") == 200 for client in self.clients.values())

    async def in_order(self) -> start_order.Started:
        """Start both as bandog-services.service does."""
        paths = Paths(etc_dir=self.root / "etc", state_dir=self.root / "lib", run_dir=self.root / "run")
        plugins = discover(paths)
        config = configuration(paths, plugins.catalogue)
        clock = WorldClock.boot(utc=NOON, rate=FAST)
        async with local_site(paths, config, plugins, systemd=self.systemd, clock=clock) as local:
            means = HostMeans(local.site, local.book.registry, local.look)
            chosen = start_order.plan(local.book.registry)
            return await start_order.start(chosen, lambda one: OneStart(one, means, self.lines.append).run())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    one.systemd.shutdown()


@pytest.mark.parametrize("boots", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_together_one_dies_and_in_order_none_does(host: Host, boots: int) -> None:
    assert not all(host.together() or host.systemd.shutdown() for _ in range(3)), "the race was never lost"
    for _ in range(boots):
        host.systemd.shutdown()
        host.lines.clear()
        started = asyncio.run(host.in_order())
        assert started.ok, host.lines
        told = [(line.service, line.progress) for line in host.lines]
        steps = (Progress.STARTING, Progress.READY, Progress.STARTED)
        assert told == [(name, step) for name in ("large", "small") for step in steps]


def test_a_model_that_cannot_start_does_not_keep_the_other_down(host: Host) -> None:
    host.systemd.units["large.service"].environment["GPU_MEMORY_UTILIZATION"] = "2"
    started = asyncio.run(host.in_order())
    assert [line.progress for line in started.lines] == [Progress.FAILED, Progress.STARTED]
