"""From the child's line to a `Look`: nothing is believed that is not of its type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from bandog import GpuLook, Holder, Instant, Look, subjects

MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h)."""
MOST_GPUS = 256
_TEXTS = ("uuid", "serial", "name", "part_number", "vbios", "recovery")
_NUMBERS = (
    "index",
    "minor",
    "memory_total",
    "memory_used",
    "util",
    "temperature",
    "sm_clock",
    "ecc_corrected",
    "ecc_uncorrected",
    "remapped",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
)
_SWITCHES = ("remap_pending", "remap_failed", "persistence", "mig", "lost")


class Rubbish(Exception):
    """The line is no answer to the question; the text says in what."""


def look_of(line: bytes, *, number: int, at: Instant, numa: Callable[[str], int | None] = lambda _: None) -> Look:
    """Return what the answer to round `number` says; `numa` adds the NUMA node of an address. Raises Rubbish."""
    try:
        said = json.loads(line)
        if not isinstance(said, dict) or said.get("round") != number:
            raise Rubbish("it is no answer to this round")
        error = _text(said, "error")
        driver, disk = _text(said, "driver"), _text(said, "disk")
        if error:
            return Look(at=at, driver=driver, library=disk, error=error, mismatch=said.get("code") == MISMATCH)
        gpus = tuple(_gpu(one, numa) for one in _list(said, "gpus"))
        return Look(
            at=at,
            gpus=gpus,
            driver=driver,
            library=disk or _library(_text(said, "library")),
            cuda=_cuda(said.get("cuda")),
            mismatch=bool(disk and driver and disk != driver),
            peers=tuple((_address(one), _address(other)) for one, other in _list(said, "peers")),
            extra={"unplaced": tuple(str(one) for one in unplaced)} if (unplaced := _list(said, "unplaced")) else {},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Rubbish(f"{type(error).__name__}: {error}"[:200]) from error


def _gpu(said: Mapping[str, Any], numa: Callable[[str], int | None]) -> GpuLook:
    known: dict[str, Any] = {name: _text(said, name) for name in _TEXTS}
    known |= {name: _whole(said.get(name)) for name in _NUMBERS}
    known |= {name: value for name in _SWITCHES if isinstance(value := said.get(name), bool)}
    known |= {name: _watts(said.get(name)) for name in ("power", "power_limit")}
    address = _address(said["address"])
    known["recovery"] = known["recovery"] or None
    if "holders" in said:
        known["holders"] = tuple(
            Holder(pid=int(one["pid"]), memory=_whole(one.get("memory"))) for one in _list(said, "holders")
        )
    return GpuLook(
        address=address,
        numa=numa(address),
        throttle=tuple(str(one) for one in _list(said, "throttle")),
        links=tuple(bool(one) for one in _list(said, "links")),
        errors={str(call): str(why) for call, why in dict(said.get("errors", {})).items()},
        **known,
    )


def _address(said: Any) -> str:
    return subjects.pci_address(str(said))


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _watts(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e6 else None


def _list(said: Mapping[str, Any], name: str) -> list[Any]:
    value = said.get(name) or []
    if not isinstance(value, list) or len(value) > MOST_GPUS * MOST_GPUS:
        raise Rubbish(f"{name} is no list")
    return value


def _library(said: str) -> str:
    """Return the driver's version in NVML's own, which begins with that of CUDA: `12.570.86.15`, `13.580.65.06`."""
    cuda, _, version = said.partition(".")
    return version if version and len(cuda) == 2 else said


def _cuda(said: Any) -> str:
    """Return 12040 as `12.4` (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR)."""
    number = _whole(said)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""
