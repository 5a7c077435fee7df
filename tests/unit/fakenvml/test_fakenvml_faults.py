"""The fake driver breaks as it is told to, and refuses what the real one refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nvml_driver import Driver

from fakenvml import CALLS, State

OF_A_GPU = sorted(
    call for call in CALLS if call.startswith("nvmlDeviceGet") and "Handle" not in call and "GetCount" not in call
)


# --- the whole library ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"init": 9}, 9),
        ({"init": 4}, 4),
        ({"library": "580.1"}, 18),
        ({"calls.nvmlInitWithFlags.error": 999}, 999),
        ({f"gpus.{place}.missing": True for place in range(4)}, 6),
    ],
    ids=["no driver", "no permission", "mismatch", "unknown", "no GPU"],
)
def test_the_initialisation_can_fail(driver: Driver, changes: dict[str, Any], code: int) -> None:
    driver.state.change(changes)
    told = driver.read()
    assert told["init"] == {"error": code}
    assert told["after"] == {"error": 1}


def test_a_host_without_gpus_can_be_looked_at_if_one_asks_for_it(driver: Driver) -> None:
    driver.state.change({f"gpus.{place}.missing": True for place in range(4)})
    assert driver.run("-c", "import pynvml as n; n.nvmlInitWithFlags(1); print(n.nvmlDeviceGetCount())") == 0


def test_without_a_state_there_is_no_driver(driver: Driver) -> None:
    driver.state.path.unlink()
    assert driver.read()["init"] == {"error": 9}


def test_a_call_can_fail_for_the_whole_system(driver: Driver) -> None:
    driver.state.change({"calls.nvmlSystemGetDriverVersion.error": 4, "calls.nvmlShutdown.error": 999})
    told = driver.read()
    assert told["system"][0] == {"error": 4}
    assert told["shutdown"] == {"error": 999}


def test_initialisations_are_counted(driver: Driver) -> None:
    code = """
import json, pynvml as n
n.nvmlInit(); n.nvmlInit(); n.nvmlShutdown()
one = n.nvmlDeviceGetCount()
n.nvmlShutdown()
errors = []
for call in (n.nvmlDeviceGetCount, n.nvmlShutdown):
    try: call()
    except n.NVMLError as error: errors.append(error.value)
print(json.dumps([one, errors]))
"""
    assert driver.run("-c", code) == [4, [1, 1]]


# --- GPUs -------------------------------------------------------------------------------------------------------


def test_a_missing_gpu_shifts_the_indices_behind_it(driver: Driver) -> None:
    gone = driver.state.read()["gpus"][1]
    driver.state.set("gpus.1.missing", True)
    told = driver.read()
    assert told["count"] == 3
    assert [one["MinorNumber"] for one in told["gpus"]] == [0, 2, 3]
    assert [one["Index"] for one in told["gpus"]] == [0, 1, 2]
    assert told["again"] == [[index] * 3 for index in range(3)]
    find = f"""
import json, pynvml as n
n.nvmlInit()
errors = []
for call, name in [(n.nvmlDeviceGetHandleByUUID, {gone["uuid"]!r}), (n.nvmlDeviceGetHandleByPciBusId, {gone["pci"]!r})]:
    try: call(name)
    except n.NVMLError as error: errors.append(error.value)
print(json.dumps(errors))
"""
    assert driver.run("-c", find) == [6, 6]


def test_a_lost_gpu_is_counted_and_gives_no_handle(driver: Driver) -> None:
    driver.state.set("gpus.2.lost", True)
    told = driver.read()
    assert told["count"] == 4
    assert told["gpus"][2] == {"error": 15}
    assert len(told["again"]) == 3


@pytest.mark.parametrize("how", ["lost", "missing"])
def test_a_gpu_that_is_lost_later_fails_every_call(driver: Driver, how: str) -> None:
    told = driver.read({f"gpus.2.{how}": True})["gpus"]
    assert {name: value for name, value in told[2].items() if value != {"error": 15}} == {}
    assert told[1]["Temperature"] == 35


def test_each_call_of_one_gpu_can_fail_with_any_code(driver: Driver) -> None:
    told = driver.read({f"gpus.3.errors.{call}": 21 for call in OF_A_GPU})["gpus"]
    assert {name: value for name, value in told[3].items() if value != {"error": 21}} == {}
    assert told[2]["Temperature"] == 35


@pytest.mark.parametrize("by", ["Index", "PciBusId", "UUID", "Serial"])
def test_a_handle_can_fail_with_any_code(driver: Driver, by: str) -> None:
    call = next(one for one in CALLS if one.startswith(f"nvmlDeviceGetHandleBy{by}"))
    driver.state.set(f"gpus.3.errors.{call}", 8)
    if by == "Index":
        assert driver.read()["gpus"][3] == {"error": 8}
        return
    card = driver.state.read()["gpus"][3]
    name = {"PciBusId": card["pci"], "UUID": card["uuid"], "Serial": card["serial"]}[by]
    code = f"""
import pynvml as n
n.nvmlInit()
try: n.nvmlDeviceGetHandleBy{by}({name!r})
except n.NVMLError as error: print(error.value)
"""
    assert driver.run("-c", code) == 8


# --- what the real one refuses ------------------------------------------------------------------------------------

EVERY = """
import ctypes, json, sys
import pynvml as n

def raw(name, *arguments):
    return n._nvmlGetFunctionPointer(name)(*arguments)

n._LoadNvmlLibrary()
calls = json.loads(sys.argv[1])
answer = {"before": {name: raw(name, None, None, None, None, None) for name in calls}}
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
system = [name for name in calls if "Handle" in name or "GetCount" in name or "System" in name]
answer["null"] = {
    name: raw(name, *([] if name in system else [handle]), None, None, None, None, None) for name in calls
}
rooms = [ctypes.create_string_buffer(4096) for _ in range(5)]
answer["stranger"] = {
    name: raw(name, ctypes.c_void_p(70000), *rooms)
    for name in calls
    if name not in [*system, "nvmlDeviceGetMemoryInfo_v2"] and not name.endswith("V")
}
answer["room"] = [raw("nvmlDeviceGetUUID", handle, rooms[0], size) for size in (0, 40, 41, 96)]
short = ctypes.c_uint(1)
answer["holders"] = [raw("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(short), rooms[0]), short.value]
answer["retired"] = [raw("nvmlDeviceGetRetiredPages", handle, 1, ctypes.byref(short), None), short.value]

def code(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as error:
        return error.value

temperature, fabric = n.c_nvmlTemperature_v1_t(), n.c_nvmlGpuFabricInfo_v3_t()
temperature.version, fabric.version = 1, 0x0100001C
answer["versions"] = [
    code(n.nvmlDeviceGetMemoryInfo, handle, 0x01000028),
    raw("nvmlDeviceGetTemperatureV", handle, ctypes.byref(temperature)),
    code(n.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(fabric)),
]
answer["arguments"] = [
    code(n.nvmlDeviceGetTemperature, handle, 1),
    code(n.nvmlDeviceGetTemperatureThreshold, handle, 7),
    code(n.nvmlDeviceGetClockInfo, handle, 4),
    code(n.nvmlDeviceGetTotalEccErrors, handle, 2, 0),
    code(n.nvmlDeviceGetMemoryErrorCounter, handle, 0, 0, 8),
    code(n.nvmlDeviceGetNvLinkState, handle, 18),
    code(n.nvmlDeviceGetNvLinkErrorCounter, handle, 0, 5),
    code(n.nvmlDeviceGetP2PStatus, handle, handle, 6),
    code(n.nvmlDeviceGetTopologyCommonAncestor, handle, ctypes.c_void_p(9)),
    code(n.nvmlDeviceGetRetiredPages, handle, 2),
]
answer["words"] = [n.nvmlErrorString(number) for number in (0, 15, 18, 25, 29, 30, 999, -1)]
print(json.dumps(answer))
"""


def test_wrong_calls_are_refused_as_the_real_one_does(driver: Driver) -> None:
    driver.state.change(
        {
            "gpus.0.processes": [{"pid": 1, "memory": 1}, {"pid": 2, "memory": 1}],
            "gpus.0.retired": {"pending": False, "double": [{"address": 1, "time": 1}] * 3},
        }
    )
    calls = sorted(CALLS - {"nvmlInitWithFlags", "nvmlShutdown"})
    told = driver.run("-c", EVERY, json.dumps(calls))
    assert told["before"] == dict.fromkeys(calls, 1)
    assert told["null"] == dict.fromkeys(calls, 2)
    assert set(told["stranger"].values()) == {2}
    assert len(told["stranger"]) > 47
    assert told["room"] == [7, 7, 0, 0]  # 40 characters and the end
    assert told["holders"] == [7, 2]
    assert told["retired"] == [7, 3]
    assert told["versions"] == [25, 25, 25]
    assert told["arguments"] == [2] * 10
    assert told["words"] == [
        *("Success", "GPU is lost", "Driver/library version mismatch", "Argument Version Mismatch", "Invalid State"),
        *["Unknown Error"] * 3,
    ]


def test_only_a_fault_that_the_library_knows_can_be_set(tmp_path: Path) -> None:
    """A slip in the name of a call would test a driver that is well."""
    state = State(tmp_path / "state", 4)
    for key in (
        "calls.nvmlDeviceGetCount.hang",
        "calls.nvmlDeviceGetCount_v2.hangs",
        "gpus.0.lsot",
        "gpus.0.errors.nvmlDeviceGetPower",
        "gpu.0.lost",
        "gpus.x.lost",
        "",
    ):
        with pytest.raises(KeyError):
            state.set(key, True)
    with pytest.raises(IndexError):
        state.set("gpus.4.lost", True)
    assert state.read() == State(tmp_path / "other", 4).read()
