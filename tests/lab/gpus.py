"""Simulated GPUs in a machine: the real driver binding over a fake library, and a state that scenarios change."""

from __future__ import annotations

import json
from typing import Any

from .. import fakenvml
from .images import CACHE
from .lab import Lab
from .machine import Machine

PLACE = "/run/fakegpu"
STATE = f"{PLACE}/state"
FIFO = f"{PLACE}/fifo"
LIBRARY = "/opt/lab/nvml"
FAKEVLLM = "/opt/lab/fakevllm"
ENVIRONMENT = f"{{LD_LIBRARY_PATH: {LIBRARY}, FAKENVML_STATE: {STATE}}}"
MORE = f"plugins: {{gpu: {{environment: {ENVIRONMENT}}}}}\n"
"""What the main file needs for them."""


def put_gpus(vm: Machine, count: int = 4) -> None:
    """Give the machine so many healthy GPUs, and what serves on them; a boot takes the state away again."""
    for name in ("__init__.py", "__main__.py"):
        vm.put(fakenvml.HERE / name, f"/opt/lab/fakenvml/{name}")
    for file in sorted((fakenvml.HERE.parent / "fakevllm").glob("*.py")):
        vm.put(file, f"{FAKEVLLM}/{file.name}")
    vm.put(fakenvml.build(CACHE / "nvml") / fakenvml.SONAME, f"{LIBRARY}/{fakenvml.SONAME}", mode="755")
    vm.ssh(
        f"mkdir -p {PLACE}/claims && python3 /opt/lab/fakenvml {STATE} preset {count} && rm -f {FIFO} && mkfifo {FIFO}"
    )


def set_gpus(vm: Machine, **values: Any) -> None:
    """Change the state; a name is a path with `__` for each dot: `gpus__2__lost=True`."""
    words = " ".join(f"{name.replace('__', '.')}='{json.dumps(value)}'" for name, value in values.items())
    vm.ssh(f"python3 /opt/lab/fakenvml {STATE} set {words}")


def gpus(lab: Lab) -> dict[str, dict[str, Any]]:
    """Return what `bandog status` tells of each GPU, by address."""
    return {one["address"]: one for one in lab.status()["gpus"]}
