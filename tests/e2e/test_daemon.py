"""The real daemon on a simulated host: kernel line → policy → action → proof → message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bandog import UnitState
from bandog.domain.model import StepState
from simhost.stage import Stage
from simhost.units import SimulatedSystemd

XID = "NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No"


def test_an_xid_leads_to_one_restart_that_is_proved_and_told(stage: Callable[..., Stage]) -> None:
    host = stage()

    async def story() -> None:
        async with host.running():
            before = host.pid
            host.kernel.print(XID)
            await host.until(lambda: bool(host.said("resolved")), 30)
            assert host.pid != before

    asyncio.run(story())
    assert host.systemd.jobs == [("restart", "vllm-qwen.service")]
    titles = {one["title"] for one in host.sink.messages}
    assert len(titles) == 1, titles
    assert {one["incident"] for one in host.sink.messages} in ({1}, {"1"})


def test_observe_mode_asks_for_no_job_and_says_what_it_would_have_done(stage: Callable[..., Stage]) -> None:
    host = stage(mode="observe")

    async def story() -> None:
        async with host.running() as daemon:
            host.kernel.print(XID)
            await host.until(lambda: any(one.end and one.end.value == "would" for one in host.changes))
            assert daemon.executor.would == 1
            await host.until(lambda: any("would have" in one["message"] for one in host.sink.messages))

    asyncio.run(story())
    assert host.systemd.jobs == []


def test_a_forged_line_of_a_process_causes_nothing(stage: Callable[..., Stage]) -> None:
    host = stage()

    async def story() -> None:
        async with host.running() as daemon:
            host.kernel.print(XID, priority=12)
            host.kernel.print(f"tmpfs: Unknown parameter '{XID}'")
            await host.until(lambda: daemon.kmsg.state.read == 2)
            await asyncio.sleep(0.3)

    asyncio.run(story())
    assert host.systemd.jobs == []


def test_an_xid_that_came_while_the_agent_was_down_is_acted_on_once(stage: Callable[..., Stage]) -> None:
    host = stage()

    async def story() -> None:
        async with host.running():
            host.kernel.print("usb 1-1: new device")
            await asyncio.sleep(0.2)
        host.kernel.print(XID)
        for _ in range(2):
            async with host.running():
                await host.until(lambda: bool(host.said("opened")))
                await host.until(lambda: bool(host.said("resolved")), 30)

    asyncio.run(story())
    assert host.systemd.jobs == [("restart", "vllm-qwen.service")]
    assert len(host.said("opened")) == 1


def test_a_drill_is_told_as_one_and_acts_only_with_really(stage: Callable[..., Stage]) -> None:
    host = stage()

    async def story() -> None:
        async with host.running() as daemon:
            operations = daemon.operations().table()
            ordered = {"kinds": ["nvidia.xid"], "service": "qwen", "subject": None, "facts": {"xid": 94}, "by": "ada"}
            operations["drill"](**ordered, really=False)
            await host.until(lambda: any("[DRILL]" in one["title"] for one in host.sink.messages))
            await host.until(lambda: any(one.end and one.end.value == "would" for one in host.changes))
            assert host.systemd.jobs == []
            operations["drill"](**{**ordered, "subject": "gpu:0000:e5:00.0"}, really=True)
            await host.until(lambda: host.systemd.jobs == [("restart", "vllm-qwen.service")])

    asyncio.run(story())


def test_a_reload_with_a_mistake_keeps_the_old_policies_and_says_so(stage: Callable[..., Stage]) -> None:
    host = stage()
    agent = "policy: agent\nmatch: {kind: 'agent.*'}\nresolve: cleared\nquiet: 0s\nnotify: [oncall]\n"
    (host.root / "etc/policies.d/90-agent.yaml").write_text(agent)
    file = host.root / "etc/policies.d/10-test.yaml"
    good = file.read_text()

    async def story() -> None:
        async with host.running() as daemon:
            file.write_text(good.replace("do: restart", "do: restrat"))
            assert "the old configuration stays" in await daemon.reload()
            await host.until(lambda: any(one.incident.kind == "agent.config-broken" for one in host.said("opened")))
            assert "test-xid" in {policy.name for policy in daemon.engine.policies}
            file.write_text(good.replace("test-xid", "renamed-xid"))
            assert "in force" in await daemon.reload()
            host.kernel.print(XID)
            await host.until(lambda: any(one.incident.policy == "renamed-xid" for one in host.said("resolved")), 30)

    asyncio.run(story())
    assert host.systemd.jobs == [("restart", "vllm-qwen.service")]


def test_a_service_that_is_renamed_has_no_fresh_budget(stage: Callable[..., Stage]) -> None:
    host = stage()
    main = host.root / "etc/bandog.yaml"
    main.write_text(main.read_text() + "budgets: {restart: 1 per 1h}\n")
    file = host.root / "etc/services.d/qwen.yaml"

    async def story() -> None:
        async with host.running() as daemon:
            host.kernel.print(XID)
            await host.until(lambda: len(host.said("resolved")) == 1, 30)
            file.write_text(file.read_text().replace("service: qwen", "service: renamed"))
            assert "1 services in force" in await daemon.reload()
            host.kernel.print(XID)
            await host.until(lambda: any(one.end is StepState.EXHAUSTED for one in host.changes), 30)

    asyncio.run(story())
    assert host.systemd.jobs == [("restart", "vllm-qwen.service")]


def test_a_part_that_ends_by_a_fault_of_our_own_is_told(stage: Callable[..., Stage]) -> None:
    """Nobody would miss the table of processes or the bookmark until the day that they are needed."""

    class Odd(SimulatedSystemd):
        async def unit(self, name: str) -> UnitState:
            raise ZeroDivisionError

    host = stage()
    host.systemd.shutdown()
    host.systemd = Odd({})
    agent = "policy: agent\nmatch: {kind: 'agent.*'}\nresolve: cleared\nnotify: [oncall]\n"
    (host.root / "etc/policies.d/90-agent.yaml").write_text(agent)

    async def story() -> None:
        async with host.running():
            await host.until(lambda: any("housekeeping" in one["message"] for one in host.sink.messages))

    asyncio.run(story())
