"""What looks at the GPUs say of a start, and what a start asks of the host."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from bandog import KnownGpu, Look, UnitState
from bandog.domain.gpus import GpuLook, Holder
from bandog.host.site import ChildOutcome
from bandog.services import overrides
from bandog.services.overrides import Override
from bandog.services.profiles import Refusal
from bandog.services.registry import Registry, Service
from bandog.services.start_means import HostMeans
from bandog.services.start_memory import cards_of, holders, is_steady, missing
from bandog.services.start_one import Means, Signs
from bandog.testing import FakeClock, FakeHost, FakeSite

A, B = "0000:17:00.0", "0000:65:00.0"
GIB = 1 << 30
NOW = FakeClock().now()
QWEN = Service(name="qwen", unit="qwen.service", gpus="all", profiles=({"count": 2}, {"count": 1}))


def card(address: str, *held: Holder, used: int = 0) -> GpuLook:
    return GpuLook(address=address, uuid=f"GPU-{address}", memory_used=used, holders=held)


def known(address: str) -> KnownGpu:
    return KnownGpu(uuid=f"GPU-{address}", slot=address, first_seen=NOW, last_seen=NOW)


def samples(*gib: float, every: float = 2) -> list[tuple[timedelta, dict[str, int]]]:
    return [(timedelta(seconds=n * every), {A: int(one * GIB)}) for n, one in enumerate(gib)]


def test_memory_rests_once_ten_seconds_differ_by_a_percent_at_most() -> None:
    assert is_steady(samples(70, 70, 70.5, 70, 70, 70))
    assert not is_steady(samples(70, 70, 72, 70, 70, 70))
    assert not is_steady(samples(70, 70, 70)), "four seconds are too short"
    assert is_steady(samples(10, 70, 70, 70, 70, 70, 70)), "what was before does not count"
    assert is_steady(samples(70, 70, every=60)), "where looks are rare, two far apart will do"
    assert not is_steady([])


def test_who_holds_little_or_is_ours_does_not_stand_in_the_way() -> None:
    cards = [card(A, Holder(pid=1, memory=100 << 20), Holder(pid=2, memory=GIB), Holder(pid=3)), card(B)]
    names = {2: "python3 (pid 2)", 3: None}
    assert holders(cards, names.get) == ("python3 (pid 2) with 1024 MiB on 17:00.0",)


def test_cards_that_are_expected_and_not_there_are_missing() -> None:
    look = Look(at=NOW, gpus=(card(A),))
    assert missing(QWEN, look, [known(A), known(B)]) == ("65:00.0",)
    assert missing(QWEN, None, [known(A)]) == ("17:00.0",)
    assert missing(Service(name="x", unit="x.service"), None, [known(A)]) == ()
    assert [one.address for one in cards_of(QWEN, look, [A])] == [A]
    assert cards_of(QWEN, Look(at=NOW, error="no driver"), []) == ()


class Host:
    """A fake site whose processes and control groups are files, and the means over it."""

    def __init__(self, root: Path) -> None:
        self.site = FakeSite(FakeHost(root))
        self.root = self.site.paths.root
        self.site.systemd.add(QWEN.unit, environment_files=(str(overrides.path_of(self.site.paths.run, QWEN.unit)),))
        self.looks: list[Look] = []
        self.means: Means = HostMeans(self.site, Registry((QWEN,)), self._look)

    def _look(self) -> None:
        if self.looks:
            self.site.gpus.take(self.looks.pop(0))

    def unit(self) -> UnitState:
        return asyncio.run(self.site.systemd.unit(QWEN.unit))

    def process(self, pid: int, comm: str, unit: str) -> None:
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True)
        rest = " ".join(["0"] * 48)
        (folder / "stat").write_text(f"{pid} ({comm}) S 1 {pid} {pid} {rest}")
        (folder / "cgroup").write_text(f"0::/system.slice/{unit}\n")
        group = self.root / f"sys/fs/cgroup/system.slice/{unit}"
        group.mkdir(parents=True, exist_ok=True)
        (self.root / "sys/fs/cgroup/cgroup.controllers").touch()
        with (group / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_stranger_is_named_with_its_unit_and_ours_and_monitors_are_not(host: Host) -> None:
    for pid, comm, unit in (
        (7, "python3", "other.service"),
        (8, "VLLM::Worker", QWEN.unit),
        (9, "dcgm-exporter", "m.service"),
    ):
        host.process(pid, comm, unit)
    host.looks = [Look(at=host.site.clock.now(), gpus=(card(A, *(Holder(pid=pid, memory=GIB) for pid in (7, 8, 9))),))]

    async def ask() -> tuple[str, ...]:
        return await host.means.holders(QWEN, await host.means.look())

    assert asyncio.run(ask()) == ("python3 (pid 7, other.service) with 1024 MiB on 17:00.0",)


def test_a_card_that_is_out_is_left_out_of_the_start(host: Host) -> None:
    look = Look(at=host.site.clock.now(), gpus=(card(A), card(B)))
    host.site.gpus.take(look)

    def prepare(seen: Look | None) -> object:
        return asyncio.run(host.means.prepare(QWEN, host.unit(), seen))

    assert prepare(look) is None, "its own files will do"
    host.site.gpus.exclude(B, reason="test", by="ann")
    put = prepare(look)
    assert isinstance(put, Override) and put.gpus == (A,) and host.means.put(QWEN) == (A,)
    host.site.gpus.exclude(A, reason="test", by="ann")
    assert isinstance(prepare(look), Refusal)
    assert prepare(None) is None, "a driver that says nothing keeps nobody down"
    host.site.systemd.change(QWEN.unit, environment_files=())
    assert prepare(look) is None, "a unit that does not read the file is started as it is"


def test_signs_are_the_log_the_disk_and_the_memory(host: Host) -> None:
    host.process(8, "VLLM::Worker", QWEN.unit)
    (host.root / f"sys/fs/cgroup/system.slice/{QWEN.unit}/io.stat").write_text(
        "8:0 rbytes=1048576 wbytes=5 rios=1\n259:0 rbytes=4096 wbytes=0\n"
    )
    host.site.child_results = lambda _: ChildOutcome(code=0, out=json.dumps({"__CURSOR": "s=1"}).encode())
    look = Look(at=host.site.clock.now(), gpus=(card(A, used=GIB), card(B, used=GIB)))
    assert asyncio.run(host.means.signs(QWEN, host.unit(), look)) == Signs(log="s=1", read=1052672, memory=2 * GIB)
    host.site.child_results = lambda _: ChildOutcome(code=0, out=b"rubbish")
    (host.root / f"sys/fs/cgroup/system.slice/{QWEN.unit}/io.stat").unlink()
    assert asyncio.run(host.means.signs(QWEN, host.unit(), None)) == Signs()
