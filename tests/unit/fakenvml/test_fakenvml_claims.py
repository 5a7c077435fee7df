"""What a process says that it holds of a GPU counts for as long as that process lives."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nvml_driver import Driver

from fakenvml import GIB


def claim(driver: Driver, pid: int, *lines: str) -> None:
    driver.state.claims.mkdir(exist_ok=True)
    (driver.state.claims / str(pid)).write_text("".join(f"{line}\n" for line in lines))


def test_the_claims_of_living_processes_count_as_memory(driver: Driver) -> None:
    first, _, third, _ = (one["uuid"] for one in driver.state.read()["gpus"])
    me = os.getpid()
    claim(driver, me, f"{third} {5 * GIB}", "rubbish", f"{third} {GIB}", f"{first} 7")
    gone = subprocess.Popen(["true"])
    gone.wait()
    claim(driver, gone.pid, f"{third} {GIB}")
    told = driver.read()["gpus"]
    assert told[2]["ComputeRunningProcesses"] == [[me, 6 * GIB]]
    assert told[2]["MemoryInfo_v2"]["used"] == 6 * GIB
    assert told[0]["ComputeRunningProcesses"] == [[me, 7]]
    assert told[1]["ComputeRunningProcesses"] == told[2]["GraphicsRunningProcesses"] == []


def test_a_claim_of_a_process_that_ended_is_not_that_of_the_next_with_its_pid(driver: Driver) -> None:
    uuid, me = driver.state.read()["gpus"][0]["uuid"], os.getpid()
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    claim(driver, me, f"start {started}", f"{uuid} 5")
    assert driver.read()["gpus"][0]["ComputeRunningProcesses"] == [[me, 5]]
    claim(driver, me, f"start {int(started) - 1}", f"{uuid} 5")
    assert driver.read()["gpus"][0]["ComputeRunningProcesses"] == []


def test_a_zombie_holds_nothing(driver: Driver) -> None:
    uuid = driver.state.read()["gpus"][0]["uuid"]
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    claim(driver, zombie.pid, f"{uuid} 5")
    assert driver.read()["gpus"][0]["ComputeRunningProcesses"] == []
    zombie.wait()
