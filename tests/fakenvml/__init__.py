"""A fake NVIDIA driver library with NVML's real ABI, driven by a state file; see README.md.

Nothing but the standard library, so that the lab's guests can run it with a bare Debian python3.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = ("state.c", "nvml.c")
SONAME = "libnvidia-ml.so.1"
GIB = 1 << 30

# Bus numbers as an eight-GPU server has them; the third of four is the card of the stories.
ADDRESSES = {
    4: ("17", "65", "e5", "e9"),
    8: ("17", "2a", "3b", "5d", "9a", "ab", "ba", "db"),
}


def build(folder: Path) -> Path:
    """Compile the library into `folder`, unless it is there already; return the folder for LD_LIBRARY_PATH.

    Raises CalledProcessError where cc fails and FileNotFoundError where there is none.
    """
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in (*SOURCES, "state.h"))).hexdigest()[:16]
    place = folder / digest
    if not (place / SONAME).exists():
        place.mkdir(parents=True, exist_ok=True)
        fresh = place / f".{SONAME}.{os.getpid()}"
        flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared", f"-Wl,-soname,{SONAME}"]
        subprocess.run(["cc", *flags, "-o", str(fresh), *(str(HERE / name) for name in SOURCES)], check=True)
        fresh.replace(place / SONAME)
    return place


def gpu(place: int, bus: str, *, island: int | None = None) -> dict[str, Any]:
    """Return the state of one healthy, idle GPU."""
    return {
        "uuid": f"GPU-{place:08x}-0000-4000-8000-{int(bus, 16):012x}",
        "serial": f"165{place:010d}",
        "pci": f"0000:{bus}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "part_number": "692-2G520-0200-000",
        "vbios": "96.00.74.00.01",
        "minor": place,
        "memory": {"total": 80 * GIB, "used": 0},
        "util": 0,
        "power": 70_000,
        "power_limit": 700_000,
        "temperature": 35,
        "clock": 345,
        "clock_max": 1980,
        "memory_clock": 2619,
        "throttle": 1,
        "ecc": {"mode": 1, "corrected": 0, "uncorrected": 0, "corrected_aggregate": 0, "uncorrected_aggregate": 0},
        "rows": {
            "correctable": 0,
            "uncorrectable": 0,
            "pending": False,
            "failed": False,
            "histogram": [640, 0, 0, 0, 0],
        },
        "pcie": {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16},
        "links": [True] * 18,
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
    """Return the state of a healthy host with `count` GPUs, 4 or 8, all of one NVLink island."""
    return {
        "driver": "570.86.15",
        "library": "570.86.15",
        "cuda": 12080,
        "init": 0,
        "calls": {},
        "gpus": [gpu(place, bus, island=0) for place, bus in enumerate(ADDRESSES[count])],
    }


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
        """Set several values in one step; KeyError or IndexError for a place that is not there."""
        state = self.read()
        for key, value in values.items():
            *above, last = key.split(".")
            here: Any = state
            for name in above:
                here = here[int(name)] if isinstance(here, list) else here.setdefault(name, {})
            if value is None and isinstance(here, dict):
                here.pop(last, None)
            elif isinstance(here, list):
                here[int(last)] = copy.deepcopy(value)
            else:
                here[last] = copy.deepcopy(value)
        self.write(state)

    @property
    def claims(self) -> Path:
        """The folder where a process that holds a GPU says so."""
        return self.path.parent / "claims"

    def env(self, library: Path) -> dict[str, str]:
        """Return the environment in which a process sees these GPUs."""
        return {"FAKENVML_STATE": str(self.path), "LD_LIBRARY_PATH": str(library)}
