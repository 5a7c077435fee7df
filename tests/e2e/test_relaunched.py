"""The whole agent, a fake driver library and a model server that takes its GPUs seriously: a card fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import fakenvml
from bandog import overrides
from bandog.daemon import Daemon
from bandog.domain.model import StepState
from bandog_plugins.actions import _preflight
from simhost.stage import Stage
from simhost.units import Unit
from simhost.vllm import Client, command

UNIT = "vllm-qwen.service"
E5 = "0000:e5:00.0"
XID = "NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No"
POLICY = """\
policy: xid-contained-ecc
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 24h
notify: [oncall]
steps:
  - do: relaunch
    with: {without: $subject, settle: 1s}
  - do: notify
    with: {to: [oncall], urgent: true}
"""
SERVICE = """\
service: qwen
unit: vllm-qwen.service
gpus: all
start: {{settle: 1s, timeout: 60s}}
ready: {{http: "http://127.0.0.1:{port}/health"}}
canary: {{openai: "http://127.0.0.1:{port}"}}
profiles:
  - {{count: 4, env: {{TP_SIZE: "4"}}}}
  - {{count: 2, env: {{TP_SIZE: "2"}}}}
"""
MAIN = """\
mode: {mode}
notify: {{oncall: {{urls: "{url}"}}}}
plugins:
  gpu: off
  relaunch: {{environment: {{FAKENVML_STATE: "{state}", LD_LIBRARY_PATH: "{library}"}}}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakenvml.build(tmp_path_factory.mktemp("nvml"))


class Host:
    """A stage with four GPUs and fakevllm on them."""

    def __init__(self, stage: Callable[..., Stage], library: Path, mode: str, wrapper: str = "") -> None:
        self.stage = one = stage(mode=mode, policies={"10-test.yaml": POLICY})
        self.library = library
        self.state = fakenvml.State(one.root / "gpus.json", 4)
        (one.root / "etc/services.d/qwen.yaml").write_text(SERVICE.format(port=one.port))
        main = MAIN.format(mode=mode, url=one.sink.url, state=self.state.path, library=library)
        (one.root / "etc/bandog.yaml").write_text(main)
        one.systemd.shutdown()
        argv = command(one.port, "--tensor-parallel-size", "${TP_SIZE}")
        if wrapper:
            argv = ["sh", "-c", f'{wrapper}; exec "$0" "$@"', *argv]
        unit = Unit(argv=argv, environment_file=overrides.path_of(one.root / "run", UNIT))
        unit.environment = {
            "TP_SIZE": "4",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "FAKENVML_STATE": str(self.state.path),
            "FAKEVLLM_LOAD": "0.2",
            "FAKEVLLM_PROFILE": "0.1",
        }
        one.systemd.units[UNIT] = unit
        one.systemd.boot(UNIT)
        self.server = Client(one.port)
        self.server.until(lambda: self.server.status("/health") == 200)

    def fail(self) -> None:
        """A program hits an ECC error on the card; on a simulated host no pid can tell whose it is."""
        self.stage.kernel.print(XID)

    @property
    def holders(self) -> set[str]:
        """The GPUs that the service holds, by address, as it says of itself."""
        return {str(one) for one in self.server.mode()["gpus"]}

    async def look(self, daemon: Daemon) -> None:
        """Look once, in place of the probe: the action's own looks are what is played here."""
        environment = {"FAKENVML_STATE": str(self.state.path), "LD_LIBRARY_PATH": str(self.library)}
        await asyncio.to_thread(_preflight.look, daemon.site, environment)
        assert len(daemon.site.gpus.usable()) == 4

    def jobs(self) -> list[str]:
        return [verb for verb, _ in self.stage.systemd.jobs]


def ended(one: Stage, action: str, state: StepState = StepState.PROVED) -> list[str]:
    """Return why steps of an action ended so."""
    return [change.why for change in one.said("step-ended") if change.action == action and change.end is state]


def test_an_error_brings_the_service_back_without_the_card(stage: Callable[..., Stage], library: Path) -> None:
    host = Host(stage, library, "enforce")
    one = host.stage

    async def story() -> None:
        async with one.running() as daemon:
            await host.look(daemon)
            assert len(await asyncio.to_thread(lambda: host.holders)) == 4
            host.fail()
            await one.until(lambda: bool(ended(one, "relaunch")), 60)
            assert host.jobs() == ["restart"]
            assert len(await asyncio.to_thread(lambda: host.holders)) == 2
            put = overrides.in_force(one.root / "run", UNIT)
            assert put is not None and put.without == (E5,) and len(put.gpus) == 2 and E5 not in put.gpus
            card = daemon.site.gpus.find(E5)
            assert card.exclusion is not None and card.exclusion.xid == 94 and card.exclusion.state == "out"
            [line] = daemon.house.status()["services"]
            assert "without e5:00.0 since" in line["override"]
        # With the agent gone systemd itself restarts the unit, and it still keeps out of the card.
        await one.systemd.restart(UNIT, deadline=put.since - put.since)
        await asyncio.to_thread(host.server.until, lambda: host.server.status("/health") == 200)
        assert len(await asyncio.to_thread(lambda: host.holders)) == 2

    asyncio.run(story())


def test_a_script_that_overrides_the_variable_is_named(stage: Callable[..., Stage], library: Path) -> None:
    host = Host(stage, library, "[relaunch]", wrapper="export CUDA_VISIBLE_DEVICES=3,2,1,0")
    one = host.stage

    async def story() -> None:
        async with one.running() as daemon:
            await host.look(daemon)
            await daemon.gpus.exclude(E5, "bad", "ann")
            host.fail()
            await one.until(lambda: bool(ended(one, "relaunch", StepState.FAILED)), 60)
            [why] = ended(one, "relaunch", StepState.FAILED)
            assert "CUDA_VISIBLE_DEVICES=3,2,1,0 in place of 0,1" in why

    asyncio.run(story())


def test_in_observe_mode_no_unit_and_no_file_is_touched(stage: Callable[..., Stage], library: Path) -> None:
    host = Host(stage, library, "observe")
    one = host.stage

    async def story() -> None:
        async with one.running() as daemon:
            await host.look(daemon)
            host.fail()
            await one.until(lambda: bool(ended(one, "relaunch", StepState.WOULD)), 30)
            assert host.jobs() == [] and overrides.in_force(one.root / "run", UNIT) is None
            assert daemon.site.gpus.find(E5).exclusion is None

    asyncio.run(story())
