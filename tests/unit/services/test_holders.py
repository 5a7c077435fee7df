"""Who holds a GPU: what the driver told, else open device files; and which services that hurts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bandog.domain.gpus import GpuLook, Holder, Look
from bandog.services.inventory import Inventory
from bandog.services.locate import Locator
from bandog.services.registry import Registry, Service
from bandog.testing import FakeHost
from samples import finding

A, B = "0000:41:00.0", "0000:e5:00.0"
QWEN = Service(name="qwen", unit="qwen.service", gpus="all")
LLAMA = Service(name="llama", unit="llama.service", gpus=("GPU-b",))


class Lab:
    """Two services on a fake host with an inventory."""

    def __init__(self, root: Path) -> None:
        self.host = FakeHost(root)
        self.inventory = Inventory(self.host.clock)
        self.locator = Locator(self.host.paths, Registry((QWEN, LLAMA)), self.inventory)

    def process(
        self, pid: int, unit: str, comm: str = "python3", *, state: str = "S", minors: tuple[int, ...] = ()
    ) -> None:
        group = f"/system.slice/{unit}"
        self.host.task(pid, comm, state, cgroup=group)
        here = self.host.paths.sys / f"fs/cgroup{group}/cgroup.procs"
        others = [int(word) for word in here.read_text().split()] if here.exists() else []
        self.host.cgroup(group, *others, pid)
        folder = self.host.paths.proc / str(pid) / "fd"
        folder.mkdir()
        for number, target in enumerate(["/dev/null", "/dev/nvidiactl", *(f"/dev/nvidia{minor}" for minor in minors)]):
            (folder / str(number)).symlink_to(target)

    def look(self, a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> None:
        def held(pids: tuple[int, ...] | None) -> tuple[Holder, ...] | None:
            return None if pids is None else tuple(Holder(pid=pid) for pid in pids)

        gpus = (
            GpuLook(address=A, uuid="GPU-a", minor=1, holders=held(a)),
            GpuLook(address=B, uuid="GPU-b", minor=0, holders=held(b)),
        )
        self.inventory.take(Look(at=self.host.clock.now(), gpus=gpus))
        self.locator.refresh()

    def later(self, seconds: int) -> None:
        self.host.clock.advance(timedelta(seconds=seconds))
        self.host.boot()

    def hurt(self, address: str = B, **facts: Any) -> tuple[str, ...]:
        lost = finding(at=self.host.clock.now(), subject=f"gpu:{address}", facts={"xid": 79, **facts})
        return self.locator.locate(lost)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    made.process(11, "qwen.service", minors=(1,))
    made.process(22, "llama.service", "VLLM::Worker_TP", minors=(0, 1))
    return made


def test_who_holds_the_gpu_is_hurt_and_not_everyone_who_might(lab: Lab) -> None:
    lab.look((11,), (22,))
    assert lab.hurt(A) == ("qwen",)
    assert lab.hurt(B) == ("llama",)
    assert lab.locator.holding(B) == ("llama",)


def test_who_held_it_in_the_last_look_is_hurt_though_it_has_died_of_it(lab: Lab) -> None:
    lab.look((11,), (22,))
    lab.later(10)
    lab.look((11,), ())
    assert lab.hurt(B) == ("llama",)
    lab.later(61)
    lab.look((11,), ())
    assert lab.hurt(B) == ("llama", "qwen"), "nobody held it of late: those whose `gpus:` name it, by UUID too"


def test_a_gpu_that_nobody_holds_falls_back_to_gpus(lab: Lab) -> None:
    lab.look((), ())
    assert lab.hurt(A) == ("qwen",)
    assert lab.hurt(B) == ("llama", "qwen")


def test_open_device_files_tell_where_the_driver_does_not(lab: Lab) -> None:
    lab.look(None, None)
    assert set(lab.hurt(A)) == {"qwen", "llama"}
    assert lab.hurt(B) == ("llama",)


def test_a_driver_that_went_silent_leaves_the_device_files(lab: Lab) -> None:
    lab.look((11,), ())
    lab.later(90)
    lab.inventory.take(Look(at=lab.host.clock.now(), error="timed out", hung=True))
    lab.locator.refresh()
    assert lab.hurt(B) == ("llama",)


def test_the_files_of_a_task_in_d_state_are_not_read(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.process(22, "llama.service", state="D", minors=(0,))
    lab.look(None, None)
    assert lab.locator.holding(B) == ()


def test_a_look_of_another_boot_says_nothing_of_minors_and_holders(lab: Lab) -> None:
    lab.look((11,), (22,))
    lab.host.clock.reboot()
    lab.host.boot()
    lab.locator.refresh()
    assert lab.hurt(B) == ("llama", "qwen")


@pytest.mark.parametrize("comm", ["nvidia-smi", "dcgm-exporter", "nv-hostengine", "nvidia-persiste"])
def test_a_monitoring_tool_is_not_blamed(lab: Lab, comm: str) -> None:
    lab.process(33, "qwen.service", comm)
    lab.look((), (33, 22))
    assert lab.hurt(B) == ("llama",), "as holder"
    assert lab.hurt(B, pid=33, process=comm) == ("llama",), "as the process of the line"
    assert lab.hurt(B, pid=33, usable="yes") == (), "its own fault, and the GPU goes on"
    assert lab.locator.holding(B) == ("llama",)


def test_a_process_of_ours_is_not_blamed(lab: Lab) -> None:
    lab.process(44, "bandog.service")
    lab.look((), (44,))
    assert lab.hurt(A, pid=44) == ("qwen",)


def test_the_process_of_the_line_comes_before_the_holders(lab: Lab) -> None:
    lab.look((11, 22), (11, 22))
    assert lab.hurt(B, pid=22) == ("llama",)
