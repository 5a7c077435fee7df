"""Each call that the agent makes, through the real binding, tells what stands in the state file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakenvml import GIB, State

# Reads every value of every GPU with nvidia-ml-py; a failure is told by its number.
READER = r"""
import json, sys
import pynvml as n

def told(call, *arguments):
    try:
        value = getattr(n, call)(*arguments)
    except n.NVMLError as error:
        return {"error": error.value}
    return value.decode() if isinstance(value, bytes) else value

def of(handle):
    rates = told("nvmlDeviceGetUtilizationRates", handle)
    memory = told("nvmlDeviceGetMemoryInfo", handle, n.nvmlMemory_v2)
    older = told("nvmlDeviceGetMemoryInfo", handle)
    pci = told("nvmlDeviceGetPciInfo", handle)
    rows = told("nvmlDeviceGetRowRemapperHistogram", handle)
    field = told("nvmlDeviceGetFieldValues", handle, [230])
    held = told("nvmlDeviceGetComputeRunningProcesses", handle)
    errors = isinstance(memory, dict)
    simple = (
        "UUID", "Serial", "Name", "BoardPartNumber", "VbiosVersion", "MinorNumber", "Index", "PowerUsage",
        "EnforcedPowerLimit", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons", "EccMode", "RemappedRows",
        "CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth",
        "PersistenceMode", "MigMode", "ComputeMode",
    )
    return {
        **{name: told("nvmlDeviceGet" + name, handle) for name in simple},
        "util": rates if isinstance(rates, dict) else rates.gpu,
        "memory": memory if errors else [memory.total, memory.used, memory.free],
        "older": older if errors else [older.total, older.used, older.free],
        "pci": pci if isinstance(pci, dict) else told("nvmlDeviceGetPciInfo", handle).busId,
        "temperature": told("nvmlDeviceGetTemperature", handle, 0),
        "clock": told("nvmlDeviceGetClockInfo", handle, 1),
        "clock_max": told("nvmlDeviceGetMaxClockInfo", handle, 1),
        "memory_clock": told("nvmlDeviceGetClockInfo", handle, 2),
        "ecc": [told("nvmlDeviceGetTotalEccErrors", handle, kind, counter) for kind in (0, 1) for counter in (0, 1)],
        "histogram": rows if isinstance(rows, dict) else [rows.max, rows.high, rows.partial, rows.low, rows.none],
        "recovery": field if isinstance(field, dict) else [field[0].nvmlReturn, field[0].value.uiVal],
        "links": [told("nvmlDeviceGetNvLinkState", handle, link) for link in range(3)],
        "holders": held if isinstance(held, dict) else [[one.pid, one.usedGpuMemory] for one in held],
        "graphics": told("nvmlDeviceGetGraphicsRunningProcesses", handle),
    }

def main():
    answer = {"before": told("nvmlDeviceGetCount")}
    answer["init"] = told("nvmlInit")
    if answer["init"] is None:
        system = ("DriverVersion", "NVMLVersion", "CudaDriverVersion")
        answer["system"] = [told("nvmlSystemGet" + one) for one in system]
        answer["count"] = told("nvmlDeviceGetCount")
        handles = [told("nvmlDeviceGetHandleByIndex", index) for index in range(answer["count"])]
        answer["gpus"] = [one if isinstance(one, dict) else of(one) for one in handles]
        good = [one for one in handles if not isinstance(one, dict)]
        answer["again"] = [
            [told("nvmlDeviceGetIndex", told("nvmlDeviceGetHandleByUUID", told("nvmlDeviceGetUUID", one))),
             told("nvmlDeviceGetIndex", told("nvmlDeviceGetHandleByPciBusId", told("nvmlDeviceGetPciInfo", one).busId))]
            for one in good
        ]
        answer["nobody"] = told("nvmlDeviceGetHandleByPciBusId", "0000:01:00.0")
        if len(good) > 1:
            pair = good[:2]
            answer["peers"] = [
                told("nvmlDeviceGetP2PStatus", *pair, 2), told("nvmlDeviceGetTopologyCommonAncestor", *pair)
            ]
        told("nvmlShutdown")
    answer["after"] = told("nvmlDeviceGetCount")
    print(json.dumps(answer))

main()
"""


def read(state: State, library: Path, *, program: str = READER, seconds: float = 20) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **state.env(library)},
        stdout=subprocess.PIPE,
        timeout=seconds,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state", 4)


def expected(one: dict[str, Any], index: int) -> dict[str, Any]:
    """What the calls tell of a healthy GPU with this state."""
    total, used = one["memory"]["total"], one["memory"]["used"] + sum(held["memory"] for held in one["processes"])
    domain, bus, device = one["pci"].removesuffix(".0").split(":")
    ecc, rows, pcie = one["ecc"], one["rows"], one["pcie"]
    return {
        "UUID": one["uuid"],
        "Serial": one["serial"],
        "Name": one["name"],
        "BoardPartNumber": one["part_number"],
        "VbiosVersion": one["vbios"],
        "MinorNumber": one["minor"],
        "Index": index,
        "PowerUsage": one["power"],
        "EnforcedPowerLimit": one["power_limit"],
        "CurrentClocksEventReasons": one["throttle"],
        "CurrentClocksThrottleReasons": one["throttle"],
        "EccMode": [ecc["mode"]] * 2,
        "RemappedRows": [rows["correctable"], rows["uncorrectable"], int(rows["pending"]), int(rows["failed"])],
        "CurrPcieLinkGeneration": pcie["generation"],
        "MaxPcieLinkGeneration": pcie["generation_max"],
        "CurrPcieLinkWidth": pcie["width"],
        "MaxPcieLinkWidth": pcie["width_max"],
        "PersistenceMode": int(one["persistence"]),
        "MigMode": [int(one["mig"])] * 2,
        "ComputeMode": one["compute_mode"],
        "util": one["util"],
        "memory": [total, used, total - used],
        "older": [total, used, total - used],
        "pci": f"{int(domain, 16):08X}:{bus.upper()}:{device.upper()}.0",
        "temperature": one["temperature"],
        "clock": one["clock"],
        "clock_max": one["clock_max"],
        "memory_clock": one["memory_clock"],
        "ecc": [ecc["corrected"], ecc["corrected_aggregate"], ecc["uncorrected"], ecc["uncorrected_aggregate"]],
        "histogram": rows["histogram"],
        "recovery": [0, one["recovery"]],
        "links": [int(up) for up in one["links"][:3]],
        "holders": [[held["pid"], held["memory"]] for held in one["processes"]],
        "graphics": [],
    }


ANOTHER: dict[str, Any] = {
    "driver": "580.65.06",
    "library": "580.65.06",
    "cuda": 13000,
    **{
        f"gpus.1.{key}": value
        for key, value in {
            "uuid": "GPU-ffffffff-1111-2222-3333-444444444444",
            "serial": "9999999999999",
            "name": "NVIDIA A100-SXM4-80GB",
            "part_number": "692-2G506-0200-003",
            "vbios": "92.00.45.00.03",
            "minor": 7,
            "pci": "0001:c1:00.0",
            "memory": {"total": 40 * GIB, "used": GIB},
            "util": 97,
            "power": 401_250,
            "power_limit": 400_000,
            "temperature": 83,
            "clock": 1410,
            "clock_max": 1411,
            "memory_clock": 1593,
            "throttle": 0x48,
            "ecc": {
                "mode": 0,
                "corrected": 1,
                "corrected_aggregate": 2,
                "uncorrected": 3,
                "uncorrected_aggregate": 5_000_000_000,
            },
            "rows": {
                "correctable": 2,
                "uncorrectable": 1,
                "pending": True,
                "failed": True,
                "histogram": [6, 5, 4, 3, 2],
            },
            "pcie": {"generation": 1, "generation_max": 4, "width": 8, "width_max": 16},
            "links": [True, False, True],
            "recovery": 4,
            "persistence": False,
            "mig": True,
            "compute_mode": 3,
            "processes": [{"pid": 11, "memory": 2 * GIB}, {"pid": 12, "memory": 3}],
        }.items()
    },
}


@pytest.mark.parametrize("changes", [{}, ANOTHER], ids=["preset", "another"])
def test_each_call_tells_what_stands_in_the_state(state: State, library: Path, changes: dict[str, Any]) -> None:
    state.change(changes)
    there, told = state.read(), read(state, library)
    assert told["init"] is None
    assert told["system"] == [there["driver"], f"12.{there['library']}", there["cuda"]]
    assert told["count"] == 4
    assert told["gpus"] == [expected(one, index) for index, one in enumerate(there["gpus"])]
    assert told["again"] == [[index, index] for index in range(4)]
    assert told["nobody"] == {"error": 6}
    assert told["peers"] == [0, 10]


def test_before_and_after_the_initialisation_nothing_is_told(state: State, library: Path) -> None:
    told = read(state, library)
    assert told["before"] == told["after"] == {"error": 1}


def test_a_missing_gpu_shifts_the_indices_behind_it(state: State, library: Path) -> None:
    state.set("gpus.1.missing", True)
    told = read(state, library)
    assert told["count"] == 3
    assert [one["MinorNumber"] for one in told["gpus"]] == [0, 2, 3]
    assert [one["Index"] for one in told["gpus"]] == [0, 1, 2]


def test_a_lost_gpu_is_counted_and_gives_no_handle(state: State, library: Path) -> None:
    state.set("gpus.2.lost", True)
    told = read(state, library)
    assert told["count"] == 4
    assert told["gpus"][2] == {"error": 15}


def test_one_call_of_one_gpu_can_fail_with_any_code(state: State, library: Path) -> None:
    state.set("gpus.3.errors.nvmlDeviceGetPowerUsage", 999)
    told = read(state, library)
    assert told["gpus"][3]["PowerUsage"] == {"error": 999}
    assert told["gpus"][2]["PowerUsage"] == 70_000


def test_what_the_state_leaves_out_is_not_supported(state: State, library: Path) -> None:
    state.change({"gpus.0.ecc": None, "gpus.0.rows": None, "gpus.0.links": [], "gpus.0.recovery": None})
    told = read(state, library)["gpus"][0]
    assert told["RemappedRows"] == told["histogram"] == told["EccMode"] == {"error": 3}
    assert told["ecc"] == [{"error": 3}] * 4
    assert told["links"] == [{"error": 3}] * 3
    assert told["recovery"][0] == 3


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"init": 9}, 9), ({"library": "580.1"}, 18), ({"calls.nvmlInitWithFlags.error": 999}, 999)],
    ids=["no driver", "mismatch", "unknown"],
)
def test_the_initialisation_can_fail(state: State, library: Path, changes: dict[str, Any], code: int) -> None:
    state.change(changes)
    assert read(state, library)["init"] == {"error": code}


def test_without_a_state_there_is_no_driver(state: State, library: Path) -> None:
    state.path.unlink()
    assert read(state, library)["init"] == {"error": 9}


def test_the_claims_of_living_processes_count_as_memory(state: State, library: Path) -> None:
    uuid = state.read()["gpus"][2]["uuid"]
    state.claims.mkdir()
    (state.claims / str(os.getpid())).write_text(f"{uuid} {5 * GIB}\n")
    gone = subprocess.run(["sh", "-c", "echo $$"], stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    (state.claims / gone).write_text(f"{uuid} {GIB}\n")
    told = read(state, library)["gpus"]
    assert told[2]["holders"] == [[os.getpid(), 5 * GIB]]
    assert told[2]["memory"][1] == 5 * GIB
    assert told[1]["holders"] == []


def test_a_call_can_be_slow(state: State, library: Path) -> None:
    state.set("calls.nvmlSystemGetDriverVersion.slow_ms", 300)
    program = (
        "import pynvml as n, time, json; n.nvmlInit(); at = time.monotonic(); n.nvmlSystemGetDriverVersion();"
        "print(json.dumps(time.monotonic() - at))"
    )
    assert read(state, library, program=program) >= 0.3


def stuck(state: State, library: Path, comes: str) -> subprocess.Popen[bytes]:
    """A process in a call that does not return, once its state letter is as wanted."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetCount(); print('back')"],
        env={**os.environ, **state.env(library)},
        stdout=subprocess.PIPE,
    )
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != comes:
        assert process.poll() is None
    return process


def test_a_call_that_sits_in_d_state_is_deaf_to_sigterm_and_goes_on_after_a_write(state: State, library: Path) -> None:
    fifo = state.path.parent / "fifo"
    os.mkfifo(fifo)
    state.set("calls.nvmlDeviceGetCount_v2.d_state", str(fifo))
    process = stuck(state, library, "D")
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    os.close(os.open(fifo, os.O_WRONLY))
    process.communicate(timeout=10)
    assert process.returncode == -15


def test_a_call_that_never_returns_ends_with_the_state_or_the_process(state: State, library: Path) -> None:
    state.set("calls.nvmlDeviceGetCount_v2.hang", True)
    process = stuck(state, library, "S")
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.3)
    state.set("calls", {})
    assert process.communicate(timeout=10)[0] == b"back\n"


NAMES = st.sampled_from(["gpus", "uuid", "calls", "memory", "0", "total", "pci", "links"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.sampled_from(["0000:17:00.0"]),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(NAMES | st.text(max_size=120), below, max_size=5),
    max_leaves=30,
)
WITHOUT_FLOW = "import pynvml as n\ntry:\n n.nvmlInit(); n.nvmlDeviceGetCount()\nexcept n.NVMLError: pass\nprint(1)"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=400) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_in_the_state_are_survived(state: State, library: Path, data: bytes) -> None:
    state.path.write_bytes(data)
    assert read(state, library, program=WITHOUT_FLOW) == 1


def test_the_command_changes_and_shows_a_state(tmp_path: Path) -> None:
    place = tmp_path / "state"
    tool = [sys.executable, str(Path(__file__).parents[2] / "fakenvml"), str(place)]
    subprocess.run([*tool, "preset", "8"], check=True)
    subprocess.run([*tool, "set", "gpus.2.lost=true", "driver=1.2.3"], check=True)
    shown = json.loads(subprocess.run([*tool, "show"], stdout=subprocess.PIPE, check=True).stdout)
    assert len(shown["gpus"]) == 8
    assert shown["gpus"][2]["lost"] is True
    assert shown["driver"] == "1.2.3"
    assert subprocess.run([*tool, "explode"], stderr=subprocess.PIPE, check=False).returncode == 2
