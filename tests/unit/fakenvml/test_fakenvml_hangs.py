"""A driver that does not answer: slow, never, and in D state."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_driver import Driver

IN_A_CALL = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetCount(); print('back')"


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        pause.wait(0.01)


def letter(pid: int) -> str:
    """The state of a process, as ps has it; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_a_call_can_be_slow(driver: Driver) -> None:
    driver.state.set("calls.nvmlSystemGetDriverVersion.slow_ms", 300)
    code = (
        "import pynvml as n, time; n.nvmlInit(); at = time.monotonic(); n.nvmlSystemGetDriverVersion();"
        "print(time.monotonic() - at)"
    )
    assert driver.run("-c", code) >= 0.3


def test_a_call_that_never_returns_ends_with_the_state(driver: Driver) -> None:
    driver.state.set("calls.nvmlDeviceGetCount_v2.hang", True)
    process = driver.start("-c", IN_A_CALL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=1)
    assert letter(process.pid) == "S"
    driver.state.set("calls", {})
    assert process.communicate(timeout=10)[0] == b"back\n"


class Stuck:
    """A process that sits in D in a call."""

    def __init__(self, driver: Driver) -> None:
        self.fifo = driver.state.path.parent / "fifo"  # the library makes it
        driver.state.set("calls.nvmlDeviceGetCount_v2.d_state", str(self.fifo))
        self.process = driver.start("-c", IN_A_CALL)
        until(lambda: letter(self.process.pid) == "D")

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_call_in_d_state_goes_on_after_a_write(driver: Driver) -> None:
    stuck = Stuck(driver)
    driver.state.set("calls", {})
    os.close(os.open(stuck.fifo, os.O_WRONLY))
    assert stuck.process.communicate(timeout=10)[0] == b"back\n"


def test_a_call_in_d_state_is_deaf_to_sigterm(driver: Driver) -> None:
    stuck = Stuck(driver)
    stuck.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        stuck.process.wait(0.3)
    assert letter(stuck.process.pid) == "D"
    os.close(os.open(stuck.fifo, os.O_WRONLY))
    stuck.process.communicate(timeout=10)
    assert stuck.process.returncode == -signal.SIGTERM


def test_sigkill_ends_a_call_in_d_state_and_leaves_nothing(driver: Driver) -> None:
    stuck = Stuck(driver)
    (child,) = stuck.children()
    stuck.process.kill()
    stuck.process.communicate(timeout=10)
    until(lambda: letter(child) in ("", "Z"))


def test_a_call_can_write_to_a_file(driver: Driver, tmp_path: Path) -> None:
    """On a frozen file system that is a D state which SIGKILL does not end; the probe's tests do it."""
    driver.state.set("calls.nvmlDeviceGetCount_v2.write_to", str(tmp_path / "written"))
    assert driver.read()["count"] == 4
    assert (tmp_path / "written").read_text() == "x"
