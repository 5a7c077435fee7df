"""A fake NVIDIA driver library with NVML's real ABI, driven by a state file; see README.md.

Nothing but the standard library, so that the lab's guests can run it with a bare Debian python3.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SONAME = "libnvidia-ml.so.1"
FLAGS = (
    *("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-fvisibility=hidden", "-shared"),
    f"-Wl,-soname,{SONAME}",
)
GIB = 1 << 30

# Bus numbers as an eight-GPU server has them; the third of four is the card of the stories.
ADDRESSES = {
    4: ("17", "65", "e5", "e9"),
    8: ("17", "2a", "3b", "5d", "9a", "ab", "ba", "db"),
}
LINKS = 18
SWITCHES = ("0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0")
"""The NVSwitches of such a server; links are spread over them."""

_NAMES = """
nvmlInitWithFlags nvmlShutdown nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion
nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2 nvmlDeviceGetCount_v2
nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleByUUID
nvmlDeviceGetHandleBySerial nvmlDeviceGetIndex nvmlDeviceGetUUID nvmlDeviceGetName nvmlDeviceGetSerial
nvmlDeviceGetBoardPartNumber nvmlDeviceGetVbiosVersion nvmlDeviceGetMinorNumber nvmlDeviceGetPciInfo_v3
nvmlDeviceGetBrand nvmlDeviceGetArchitecture nvmlDeviceGetNumaNodeId nvmlDeviceGetMemoryInfo
nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v3
nvmlDeviceGetUtilizationRates nvmlDeviceGetPowerUsage nvmlDeviceGetEnforcedPowerLimit
nvmlDeviceGetPowerManagementLimit nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo nvmlDeviceGetTemperature
nvmlDeviceGetTemperatureV nvmlDeviceGetTemperatureThreshold nvmlDeviceGetCurrentClocksThrottleReasons
nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetPersistenceMode nvmlDeviceGetComputeMode
nvmlDeviceGetMigMode nvmlDeviceGetEccMode nvmlDeviceGetTotalEccErrors nvmlDeviceGetMemoryErrorCounter
nvmlDeviceGetRemappedRows nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetRetiredPages
nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetFieldValues
nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth
nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetPcieReplayCounter nvmlDeviceGetNvLinkState
nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvLinkErrorCounter nvmlDeviceGetNvLinkRemotePciInfo_v2
nvmlDeviceGetP2PStatus nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetGpuFabricInfo
nvmlDeviceGetGpuFabricInfoV
"""
CALLS = frozenset(_NAMES.split())
"""The C functions that can be made to fail, all that the library has but nvmlErrorString and the names of old."""
FAULTS = frozenset({"error", "slow_ms", "hang", "d_state", "write_to"})
OPTIONAL = frozenset(
    {"island", "mig_pending", "pci_device_id", "pci_subsystem_id", "power_limit_set", "retired", "util_memory"}
)
"""What a GPU may have besides what the preset gives it."""


def build(folder: Path) -> Path:
    """Compile the library into `folder`, unless it is there already; return the folder for LD_LIBRARY_PATH.

    Raises CalledProcessError where cc fails and FileNotFoundError where there is none.
    """
    sources = sorted(HERE.glob("*.c"))
    parts = [FLAGS, *((file.name, file.read_bytes()) for file in (*sources, *sorted(HERE.glob("*.h"))))]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    place = folder / digest
    if not (place / SONAME).exists():
        place.mkdir(parents=True, exist_ok=True)
        fresh = place / f".{SONAME}.{os.getpid()}"
        subprocess.run(["cc", *FLAGS, "-o", str(fresh), *map(str, sources)], check=True)
        fresh.replace(place / SONAME)
    return place


def gpu(place: int, bus: str, *, island: int | None = None, numa: int = 0) -> dict[str, Any]:
    """Return the state of one healthy, idle GPU."""
    return {
        "uuid": f"GPU-{place:08x}-0000-4000-8000-{int(bus, 16):012x}",
        "serial": f"165{place:010d}",
        "pci": f"0000:{bus}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "part_number": "692-2G520-0200-000",
        "vbios": "96.00.74.00.01",
        "minor": place,
        "brand": 14,
        "architecture": 9,
        "numa": numa,
        "memory": {"total": 80 * GIB, "used": 0},
        "util": 0,
        "power": 70_000,
        "power_limit": 700_000,
        "temperature": 35,
        "memory_temperature": 42,
        "thresholds": {"shutdown": 95, "slowdown": 90, "memory_max": 95, "gpu_max": 87},
        "clock": 345,
        "clock_max": 1980,
        "memory_clock": 2619,
        "memory_clock_max": 2619,
        "throttle": 1,
        "ecc": {"mode": 1, "corrected": 0, "uncorrected": 0, "corrected_aggregate": 0, "uncorrected_aggregate": 0},
        "rows": {
            "correctable": 0,
            "uncorrectable": 0,
            "pending": False,
            "failed": False,
            "histogram": [640, 0, 0, 0, 0],
        },
        "pcie": {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16, "replays": 0},
        "links": [True] * LINKS,
        "nvlink": {"version": 6, "remote": [SWITCHES[link % len(SWITCHES)] for link in range(LINKS)], "errors": {}},
        "fabric": {"state": 3, "status": 0, "clique": 0, "cluster": "", "health": 0, "health_summary": 1},
        "recovery": 0,
        "persistence": True,
        "mig": False,
        "compute_mode": 0,
        "lost": False,
        "missing": False,
        "errors": {},
        "processes": [],
        **({} if island is None else {"island": island}),
    }


def preset(count: int) -> dict[str, Any]:
    """Return the state of a healthy host with `count` GPUs, 4 or 8, on two NUMA nodes, all of one NVLink island."""
    return {
        "driver": "570.86.15",
        "library": "570.86.15",
        "cuda": 12080,
        "init": 0,
        "calls": {},
        "gpus": [gpu(place, bus, island=0, numa=place * 2 // count) for place, bus in enumerate(ADDRESSES[count])],
    }


def _check(key: str) -> None:
    """Raise KeyError for a path that the library does not look at: a fault with a slip in its name tests nothing."""
    known = gpu(0, "0").keys() | OPTIONAL
    match key.split("."):
        case ["driver" | "library" | "cuda" | "init" | "gpus" | "calls"]:
            pass
        case ["gpus", place] if place.isdecimal():
            pass
        case ["gpus", place, "errors", call] if place.isdecimal() and call in CALLS:
            pass
        case ["gpus", place, name, *more] if place.isdecimal() and name in known and (name != "errors" or not more):
            pass
        case ["calls", call, *fault] if call in CALLS and (not fault or (len(fault) == 1 and fault[0] in FAULTS)):
            pass
        case _:
            raise KeyError(key)


class State:
    """The state file at `path`: read it, change it; each write is one rename, so no reader sees a half."""

    def __init__(self, path: Path, count: int | None = None) -> None:
        self.path = path
        if count is not None:
            self.write(preset(count))

    def read(self) -> dict[str, Any]:
        """Return the whole state."""
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def write(self, state: dict[str, Any]) -> None:
        """Replace the whole state."""
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(state, indent=1) + "\n")
        fresh.replace(self.path)

    def set(self, key: str, value: Any) -> None:
        """Set one value by its path: `gpus.2.lost`, `calls.nvmlDeviceGetUUID.error`; None removes it."""
        self.change({key: value})

    def change(self, values: dict[str, Any]) -> None:
        """Set several values in one step, which no other writer comes between.

        Raises KeyError for a name that the library does not know, IndexError for a place that is not there.
        """
        for key in values:
            _check(key)
        with self._alone():
            state = self.read()
            for key, value in values.items():
                _put(state, key.split("."), value)
            self.write(state)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    @property
    def claims(self) -> Path:
        """The folder where a process that holds a GPU says so."""
        return self.path.parent / "claims"

    def env(self, library: Path) -> dict[str, str]:
        """Return the environment in which a process sees these GPUs."""
        return {"FAKENVML_STATE": str(self.path), "LD_LIBRARY_PATH": str(library)}


def _put(state: dict[str, Any], path: list[str], value: Any) -> None:
    *above, last = path
    here: Any = state
    for name in above:
        here = here[int(name)] if isinstance(here, list) else here.setdefault(name, {})
    if isinstance(here, list):
        here[int(last)] = copy.deepcopy(value)
    elif value is None:
        here.pop(last, None)
    else:
        here[last] = copy.deepcopy(value)
