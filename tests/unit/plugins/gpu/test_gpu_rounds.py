"""When the driver is asked, what is made of its answers, and that it is left alone when it does not answer."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandog import Answer, GpuLook, Look
from bandog.testing import FakeClock, FakeHost, FakeSite
from bandog_plugins.gpu.answers import Rubbish, look_of
from bandog_plugins.gpu.rounds import COMM, Rounds

A, B = "0000:17:00.0", "0000:e5:00.0"
HANGS = Answer(line=None, why="it gave no answer", timed_out=True)
STUCK = Answer(line=None, why="it gave no answer", timed_out=True, stuck=True)
ROUND = timedelta(seconds=10)


class Driver:
    """Answers for the child; `says` is an answer, or what the child would tell, or raw bytes."""

    def __init__(self, tmp_path: Path) -> None:
        self.site = FakeSite(FakeHost(tmp_path), resident_results=self._answer)
        self.rounds = Rounds()
        self.says: Answer | dict[str, Any] | bytes = {"gpus": [{"address": A, "uuid": "GPU-a", "persistence": True}]}
        self.asked: list[dict[str, Any]] = []

    def _answer(self, argv: Sequence[str], line: bytes) -> Answer:
        question = json.loads(line)
        self.asked.append(question)
        if isinstance(self.says, Answer):
            return self.says
        if isinstance(self.says, bytes):
            return Answer(line=self.says)
        return Answer(line=json.dumps({"round": question["round"], "driver": "570.86.15", **self.says}).encode())

    def take(self) -> Look | None:
        """One poll, and the 10 s to the next one."""
        look = self.rounds.take(self.site)
        if look is not None:
            self.site.gpus.take(look)
        self.site.clock.advance(ROUND)
        return look

    def answered(self) -> list[bool]:
        """Ten polls: which of them asked the driver."""
        asked = []
        for _ in range(10):
            before = len(self.asked)
            self.take()
            asked.append(len(self.asked) > before)
        return asked


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_each_poll_is_a_round_while_persistence_mode_is_on(driver: Driver) -> None:
    assert driver.answered() == [True] * 10
    assert driver.rounds.persistent is True


def test_without_persistence_mode_the_driver_is_asked_once_a_minute(driver: Driver) -> None:
    driver.says = {"gpus": [{"address": A, "persistence": False}]}
    assert driver.answered() == [True, *[False] * 5, True, *[False] * 3]


def test_where_the_driver_refuses_it_is_asked_once_a_minute(driver: Driver) -> None:
    driver.says = {"error": "Driver Not Loaded", "code": 9}
    look = driver.take()
    assert look is not None
    assert (look.error, look.hung, look.mismatch) == ("Driver Not Loaded", False, False)
    assert driver.answered() == [*[False] * 5, True, *[False] * 4]


def test_a_mismatch_names_both_versions(driver: Driver) -> None:
    driver.site.host.write("/sys/module/nvidia/version", "550.54.15\n")
    driver.says = {"driver": "", "error": "RM has detected an NVML/RM version mismatch.", "code": 18, "disk": "550.90"}
    look = driver.take()
    assert look is not None
    assert (look.mismatch, look.driver, look.library) == (True, "550.54.15", "550.90")


def test_a_library_that_was_upgraded_under_a_running_driver_is_a_mismatch_while_it_answers(driver: Driver) -> None:
    driver.says = {"gpus": [], "disk": "575.51.03"}
    look = driver.take()
    assert look is not None
    assert (look.mismatch, look.error, look.driver, look.library) == (True, "", "570.86.15", "575.51.03")


def test_it_asks_for_cards_that_were_there_and_those_that_the_driver_lists(driver: Driver) -> None:
    driver.take()
    driver.site.host.write("/proc/driver/nvidia/gpus/0000:e5:00.0/information", "")
    driver.site.host.write("/sys/bus/pci/drivers/nvidia/0000:65:00.0/x", "")
    driver.site.host.write("/sys/bus/pci/drivers/nvidia/new_id", "")
    driver.take()
    assert [one["at"] for one in driver.asked] == [[], [A, "0000:65:00.0", B]]


def test_no_answer_is_a_hung_driver_and_it_is_left_alone_for_a_minute(driver: Driver) -> None:
    driver.take()
    driver.says = HANGS
    looks = [driver.take() for _ in range(8)]
    assert [look is not None and look.hung for look in looks] == [True] * 8
    assert [look.extra["seconds"] for look in looks if look is not None] == list(range(0, 80, 10))
    assert len(driver.asked) == 3
    driver.says = {"gpus": []}
    assert [look.hung for _ in range(7) if (look := driver.take()) is not None] == [*[True] * 4, *[False] * 3]


def test_while_a_child_is_stuck_none_is_started_and_when_it_ends_the_driver_is_asked_at_once(driver: Driver) -> None:
    driver.says = STUCK
    for _ in range(30):
        look = driver.take()
        assert look is not None
        assert look.hung
        assert look.extra["stuck"] is True
    assert len(driver.site.children) == len(driver.asked) == 1
    driver.says = {"gpus": []}
    child = driver.rounds._child
    assert child is not None
    child.stuck = False  # type: ignore[misc]  # it has ended at last
    look = driver.take()
    assert look is not None
    assert not look.hung


def test_a_child_that_an_earlier_agent_left_in_d_state_counts_as_ours(driver: Driver) -> None:
    me, host = os.getpid(), driver.site.host
    host.task(me, "python3", cgroup="/system.slice/bandog.service")
    host.task(4242, COMM, "D", ppid=1, cgroup="/system.slice/bandog.service")
    host.cgroup("/system.slice/bandog.service", me, 4242)
    looks = [driver.take() for _ in range(20)]
    assert all(look is not None and look.hung and look.extra["stuck"] for look in looks)
    assert driver.site.children == []
    host.task(4242, COMM, "Z", ppid=1)
    look = driver.take()
    assert look is not None
    assert not look.hung


def test_a_child_that_ends_is_started_again_but_not_in_each_round(driver: Driver) -> None:
    driver.says = Answer(line=None, why="it ended by signal 9")
    look = driver.take()
    assert look is not None
    assert (look.hung, look.error) == (False, "the program that asks the driver gave no answer: it ended by signal 9")
    assert driver.answered() == [True, *[False] * 5, True, *[False] * 3]


@pytest.mark.parametrize("line", [b"", b"NVRM: hello", b"[]", b'{"round": 0, "gpus": []}', b"[" * 5000, b"\xff"])
def test_rubbish_ends_the_child_and_says_nothing_of_the_gpus(driver: Driver, line: bytes) -> None:
    driver.take()
    driver.says = line
    look = driver.take()
    assert look is not None
    assert "rubbish" in look.error
    assert not look.hung
    driver.says = {"gpus": []}
    assert driver.take() is not None
    assert len(driver.site.children) == 2


def test_the_numa_node_of_a_card_is_that_of_its_slot(driver: Driver) -> None:
    driver.site.host.write(f"/sys/bus/pci/devices/{A}/numa_node", "1\n")
    driver.site.host.write(f"/sys/bus/pci/devices/{B}/numa_node", "-1\n")
    driver.says = {"gpus": [{"address": A}, {"address": B}]}
    look = driver.take()
    assert look is not None
    assert [one.numa for one in look.gpus] == [1, None]


def test_addresses_get_the_one_spelling_and_versions_are_those_of_the_driver() -> None:
    said = {
        "round": 1,
        "library": "12.570.86.15",
        "cuda": 12080,
        "gpus": [{"address": "00000000:E5:00.0", "uuid": "GPU-e5", "power": 512.5, "util": True, "index": "0"}],
        "peers": [["0000:17:00", "0000:E5:00.0"]],
    }
    look = look_of(json.dumps(said).encode(), number=1, at=FakeClock().now())
    assert (look.library, look.cuda, look.peers) == ("570.86.15", "12.8", ((A, B),))
    # What is not of its type is left out.
    assert look.gpus == (GpuLook(address=B, uuid="GPU-e5", power=512.5),)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["address", "uuid", "util", "power", "links", "holders", "errors", "lost", "throttle", "recovery"]
)


@settings(max_examples=150)
@given(st.lists(st.dictionaries(names, values | st.just(A), max_size=6), max_size=3), values, values)
def test_whatever_a_child_says_is_a_sound_look_or_rubbish(gpus: list[Any], peers: Any, driver: Any) -> None:
    said = {"round": 1, "gpus": gpus, "peers": peers, "driver": driver, "unplaced": driver}
    try:
        look = look_of(json.dumps(said).encode(), number=1, at=FakeClock().now())
    except Rubbish:
        return
    for one in look.gpus:
        assert one.power is None or type(one.power) is float
        assert one.util is None or type(one.util) is int
        assert all(type(link) is bool for link in one.links)
