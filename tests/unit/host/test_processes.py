"""Reading tasks from /proc: this machine's, and what a test writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.host import processes
from bandog.host.paths import Paths
from bandog.testing import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.mark.parametrize("comm", ["a", "a b", "(x) S 1", "a)", "new\nline", "", "VLLM::Worker_TP"])
def test_a_name_may_hold_anything_and_the_state_follows_the_last_parenthesis(host: FakeHost, comm: str) -> None:
    host.task(42, comm, "D", ppid=7, start=9000, cpu_ticks=5)
    task = processes.task_state(host.paths, 42)
    assert task is not None
    assert (task.comm, task.state, task.ppid, task.start, task.cpu_ticks) == (comm, "D", 7, 9000, 5)
    assert [one.pid for one in processes.tasks_in_state(host.paths, 42, [42], "D")] == [42]


def test_this_process_is_read_with_its_switches() -> None:
    task = processes.task_state(Paths(), os.getpid())
    assert task is not None
    assert (task.pid, task.tgid, task.ppid) == (os.getpid(), os.getpid(), os.getppid())
    assert task.switches is not None
    assert task.start > 0


def test_a_process_that_has_gone_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert processes.task_state(Paths(), child.pid) is None
    assert processes.task_status(Paths(), child.pid) is None
    assert processes.thread_ids(Paths(), child.pid) == []
    assert processes.kernel_stack(Paths(), child.pid) == ()
    assert processes.wait_channel(Paths(), child.pid) is None
    assert not processes.holds_device(Paths(), child.pid, "/")
    assert list(processes.tasks_in_state(Paths(), child.pid, [child.pid], "DRS")) == []


def test_a_device_that_is_held_open_is_found() -> None:
    with Path("/dev/null").open("rb"):
        assert processes.holds_device(Paths(), os.getpid(), "/dev/nul")
    assert not processes.holds_device(Paths(), os.getpid(), "/dev/nvidia")


def test_the_leader_is_the_first_of_its_threads(host: FakeHost) -> None:
    for tid in (9, 10, 7):
        host.task(9, "x", tid=tid)
    assert processes.thread_ids(host.paths, 9) == [9, 7, 10]


def test_a_stack_is_its_lines_without_the_addresses(host: FakeHost) -> None:
    host.task(5, "x", "D", stack="[<0>] a+0x1/0x2 [m]\n[<ffffffff81>] b+0x1/0x2\n", wchan="a")
    assert processes.kernel_stack(host.paths, 5) == ("a+0x1/0x2 [m]", "b+0x1/0x2")
    assert processes.wait_channel(host.paths, 5) == "a"


def test_a_pending_sigkill_is_seen(host: FakeHost) -> None:
    host.task(5, "x", "R")
    assert processes.task_status(host.paths, 5).killed is False  # type: ignore[union-attr]  # it exists
    host.write("/proc/5/status", "Tgid:\t5\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n")
    status = processes.task_status(host.paths, 5)
    assert status == processes.TaskStatus(tgid=5, switches=None, killed=True)


def test_the_threads_of_a_cgroup_include_those_of_groups_below(host: FakeHost) -> None:
    host.cgroup("/system.slice/a.service", 1)
    host.cgroup("/system.slice/a.service/worker", 2)
    for pid in (1, 2):
        host.task(pid, "x")
    host.task(2, "y", tid=3)
    assert [task.pid for task in processes.tasks_in_cgroup(host.paths, "/system.slice/a.service")] == [1, 2, 3]
    assert list(processes.tasks_in_cgroup(host.paths, "")) == []
    assert list(processes.tasks_in_cgroup(host.paths, "/system.slice/b.service")) == []


@given(st.binary(max_size=300))
def test_arbitrary_bytes_in_proc_never_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    host = FakeHost(tmp_path_factory.mktemp("host"))
    for name in ("stat", "status", "stack", "wchan", "cgroup"):
        host.write(f"/proc/3/{name}", data)
        host.write(f"/proc/3/task/3/{name}", data)
    processes.task_state(host.paths, 3)
    processes.task_status(host.paths, 3)
    processes.kernel_stack(host.paths, 3)
    processes.wait_channel(host.paths, 3)
    list(processes.tasks_in_state(host.paths, 3, [3], "DRSTtXZI"))
