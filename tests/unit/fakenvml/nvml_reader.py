"""Reads all that the fake driver tells, with nvidia-ml-py as it is; prints JSON. A failure is told by its number.

With an argument it takes the handles, prints a line, and waits for one before it goes on.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import pynvml as n

SIMPLE = (
    *("UUID", "Serial", "Name", "BoardPartNumber", "VbiosVersion", "MinorNumber", "Index", "Brand", "Architecture"),
    *("NumaNodeId", "PowerUsage", "EnforcedPowerLimit", "PowerManagementLimit", "CurrentClocksEventReasons"),
    *("CurrentClocksThrottleReasons", "EccMode", "RemappedRows", "RetiredPagesPendingStatus"),
    *("CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth"),
    *("PcieReplayCounter", "PersistenceMode", "MigMode", "ComputeMode"),
)
FIELDS: list[Any] = [
    *(1, 2, 3, 4, 5, 6, 11, 12, 22, 23, 38, 45, 52, 59, 82, 91, 94, 142, 143, 144, 145, 160, 166, 185, 186, 230),
    *(32, 39, 46, 53, 96, 148, (161, 1), (162, 1), (163, 1), (165, 1), (165, 0)),
]


def plain(value: Any) -> Any:
    """Return what a call gave as JSON has it; a struct as its fields."""
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array):
        return bytes(value).hex()
    if isinstance(value, bytes):
        return value.decode()
    return value


def told(call: str, *arguments: Any) -> Any:
    """Return what a call gives, or its error."""
    try:
        return plain(getattr(n, call)(*arguments))
    except n.NVMLError as error:
        return {"error": error.value}


def fabric(call: str, handle: Any, struct: Any) -> Any:
    answer = told(call, handle, ctypes.byref(struct))
    return plain(struct) if answer == 0 else answer


def fields(handle: Any) -> Any:
    try:
        values = n.nvmlDeviceGetFieldValues(handle, FIELDS)
    except n.NVMLError as error:
        return {"error": error.value}
    assert all(one.timestamp for one in values)
    return [field(one) for one in values]


def field(one: Any) -> Any:
    if one.nvmlReturn != n.NVML_SUCCESS:
        return {"error": one.nvmlReturn}
    return one.value.uiVal if one.valueType == n.NVML_VALUE_TYPE_UNSIGNED_INT else one.value.ullVal


def holders(call: str, handle: Any) -> Any:
    try:
        return [[one.pid, one.usedGpuMemory] for one in getattr(n, call)(handle)]
    except n.NVMLError as error:
        return {"error": error.value}


def of(handle: Any, peer: Any) -> dict[str, Any]:
    """Read everything of one GPU."""
    both = [(kind, counter) for kind in (0, 1) for counter in (0, 1)]
    return {
        **{name: told("nvmlDeviceGet" + name, handle) for name in SIMPLE},
        "UtilizationRates": told("nvmlDeviceGetUtilizationRates", handle),
        "MemoryInfo": told("nvmlDeviceGetMemoryInfo", handle),
        "MemoryInfo_v2": told("nvmlDeviceGetMemoryInfo", handle, n.nvmlMemory_v2),
        "PciInfo": told("nvmlDeviceGetPciInfo", handle),
        "Temperature": told("nvmlDeviceGetTemperature", handle, 0),
        "TemperatureV": told("nvmlDeviceGetTemperatureV", handle, 0),
        **{
            f"TemperatureThreshold {kind}": told("nvmlDeviceGetTemperatureThreshold", handle, kind) for kind in range(4)
        },
        **{f"ClockInfo {kind}": told("nvmlDeviceGetClockInfo", handle, kind) for kind in range(4)},
        **{f"MaxClockInfo {kind}": told("nvmlDeviceGetMaxClockInfo", handle, kind) for kind in range(4)},
        **{f"TotalEccErrors {one}": told("nvmlDeviceGetTotalEccErrors", handle, *one) for one in both},
        **{f"Dram {one}": told("nvmlDeviceGetMemoryErrorCounter", handle, *one, 2) for one in both},
        **{f"Sram {one}": told("nvmlDeviceGetMemoryErrorCounter", handle, *one, 7) for one in both},
        "L2": told("nvmlDeviceGetMemoryErrorCounter", handle, 0, 0, 1),
        "RowRemapperHistogram": told("nvmlDeviceGetRowRemapperHistogram", handle),
        **{f"RetiredPages {cause}": told("nvmlDeviceGetRetiredPages", handle, cause) for cause in (0, 1)},
        **{f"RetiredPages_v2 {cause}": told("nvmlDeviceGetRetiredPages_v2", handle, cause) for cause in (0, 1)},
        "FieldValues": fields(handle),
        **{f"NvLinkState {link}": told("nvmlDeviceGetNvLinkState", handle, link) for link in range(4)},
        **{f"NvLinkVersion {link}": told("nvmlDeviceGetNvLinkVersion", handle, link) for link in range(2)},
        **{
            f"NvLinkErrorCounter {link} {counter}": told("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
            for link in range(2)
            for counter in range(5)
        },
        **{f"NvLinkRemotePciInfo {link}": told("nvmlDeviceGetNvLinkRemotePciInfo", handle, link) for link in range(2)},
        "P2PStatus": told("nvmlDeviceGetP2PStatus", handle, peer, 2),
        "TopologyCommonAncestor": told("nvmlDeviceGetTopologyCommonAncestor", handle, peer),
        "GpuFabricInfo": fabric("nvmlDeviceGetGpuFabricInfo", handle, n.c_nvmlGpuFabricInfo_t()),
        "GpuFabricInfoV 2": fabric("nvmlDeviceGetGpuFabricInfoV", handle, n.c_nvmlGpuFabricInfo_v2_t()),
        "GpuFabricInfoV 3": fabric("nvmlDeviceGetGpuFabricInfoV", handle, n.c_nvmlGpuFabricInfo_v3_t()),
        "ComputeRunningProcesses": holders("nvmlDeviceGetComputeRunningProcesses", handle),
        "GraphicsRunningProcesses": holders("nvmlDeviceGetGraphicsRunningProcesses", handle),
    }


def again(handle: Any) -> list[Any]:
    """Find a GPU by each of its names; return the indices found, or why a name cannot be had."""
    address = told("nvmlDeviceGetPciInfo", handle)
    names = {
        "nvmlDeviceGetHandleByUUID": told("nvmlDeviceGetUUID", handle),
        "nvmlDeviceGetHandleBySerial": told("nvmlDeviceGetSerial", handle),
        "nvmlDeviceGetHandleByPciBusId": address.get("busId", address),
    }
    return [found(call, name) if isinstance(name, str) else name for call, name in names.items()]


def found(call: str, name: str) -> Any:
    try:
        return told("nvmlDeviceGetIndex", getattr(n, call)(name))
    except n.NVMLError as error:
        return {"error": error.value}


def main() -> None:
    answer: dict[str, Any] = {"before": told("nvmlDeviceGetCount"), "init": told("nvmlInit")}
    if answer["init"] is None:
        system = ("DriverVersion", "NVMLVersion", "CudaDriverVersion", "CudaDriverVersion_v2")
        answer["system"] = [told("nvmlSystemGet" + one) for one in system]
        answer["count"] = told("nvmlDeviceGetCount")
        handles = []
        for index in range(answer["count"]):
            try:
                handles.append(n.nvmlDeviceGetHandleByIndex(index))
            except n.NVMLError as error:
                handles.append({"error": error.value})
        if sys.argv[1:]:
            print("ready", flush=True)
            sys.stdin.readline()
        good = [one for one in handles if not isinstance(one, dict)]
        answer["gpus"] = [one if isinstance(one, dict) else of(one, good[0]) for one in handles]
        answer["again"] = [] if sys.argv[1:] else [again(one) for one in good]
        answer["nobody"] = [
            told("nvmlDeviceGetHandleByPciBusId", "0000:01:00.0"),
            told("nvmlDeviceGetHandleByUUID", "GPU-0"),
            told("nvmlDeviceGetHandleBySerial", "0"),
            told("nvmlDeviceGetHandleByPciBusId", "rubbish"),
            told("nvmlDeviceGetHandleByIndex", 64),
        ]
        answer["shutdown"] = told("nvmlShutdown")
    answer["after"] = told("nvmlDeviceGetCount")
    answer["called"] = sorted(n._nvmlGetFunctionPointer_cache)
    print(json.dumps(answer, default=repr))  # a handle where there should be none


if __name__ == "__main__":
    main()
