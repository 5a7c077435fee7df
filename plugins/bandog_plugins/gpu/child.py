"""Asks the NVIDIA driver, in a process of its own: `python -I -m bandog_plugins.gpu.child`.

The only importer of pynvml. A call into a sick driver may never return, so nobody but this program makes one. It
stays, because a start costs more than a round: each line on its standard input asks for one round, each line on
its standard output is the answer, in JSON. NVML is opened and shut down in each round: a held handle keeps an
administrator from resetting a GPU.

A question is `{"round": N, "at": [PCI addresses]}`; the addresses are those of GPUs that should be there, asked by
address where they do not appear by index. The answer's `gpus` carry the names of `bandog.GpuLook`; a call that
failed leaves its value out and stands in `errors` with NVML's words.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml as nvml

from .library import Library

COMM = "bandog-nvml"
MOST_LINKS = 18
"""NVLinks of one GPU (NVML_NVLINK_MAX_LINKS)."""
RECOVERY = ("none", "reset", "reboot", "drain-p2p", "drain-and-reset")
"""Values 0 to 4 of field 230 (nvml.h, nvmlDeviceGpuRecoveryAction_t). What follows was renamed between releases,
so it is told by its number."""
THROTTLE = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons, named as nvidia-smi's `clocks_event_reasons` names them."""

Answer = dict[str, Any]
Reading = tuple[str, str, tuple[Any, ...], Callable[[Any], Any]]


def _same(value: Any) -> Any:
    return value


# Read once for each card: (key, call, further arguments, conversion).
IDENTITY: tuple[Reading, ...] = (
    ("name", "nvmlDeviceGetName", (), _same),
    ("serial", "nvmlDeviceGetSerial", (), _same),
    ("part_number", "nvmlDeviceGetBoardPartNumber", (), _same),
    ("vbios", "nvmlDeviceGetVbiosVersion", (), _same),
    ("minor", "nvmlDeviceGetMinorNumber", (), _same),
    ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), _same),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), _same),
)
# Read in each round.
STATE: tuple[Reading, ...] = (
    ("recovery", "nvmlDeviceGetFieldValues", ([nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION],), lambda v: _recovery(v[0])),
    ("util", "nvmlDeviceGetUtilizationRates", (), lambda v: v.gpu),
    ("power", "nvmlDeviceGetPowerUsage", (), lambda v: v / 1000),
    ("power_limit", "nvmlDeviceGetEnforcedPowerLimit", (), lambda v: v / 1000),
    ("temperature", "nvmlDeviceGetTemperature", (nvml.NVML_TEMPERATURE_GPU,), _same),
    ("sm_clock", "nvmlDeviceGetClockInfo", (nvml.NVML_CLOCK_SM,), _same),
    (
        "throttle",
        "nvmlDeviceGetCurrentClocksEventReasons",
        (),
        lambda v: [THROTTLE[one] for one in THROTTLE if v & one],
    ),
    (
        "ecc_corrected",
        "nvmlDeviceGetTotalEccErrors",
        (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        _same,
    ),
    (
        "ecc_uncorrected",
        "nvmlDeviceGetTotalEccErrors",
        (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        _same,
    ),
    ("rows", "nvmlDeviceGetRemappedRows", (), _same),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), _same),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), _same),
    ("persistence", "nvmlDeviceGetPersistenceMode", (), bool),
    ("mig", "nvmlDeviceGetMigMode", (), lambda v: bool(v[0])),
    ("memory", "nvmlDeviceGetMemoryInfo", (nvml.nvmlMemory_v2,), lambda v: (v.total, v.used)),
    (
        "holders",
        "nvmlDeviceGetComputeRunningProcesses",
        (),
        lambda v: [{"pid": one.pid, "memory": one.usedGpuMemory} for one in v],
    ),
)
# What an older driver has instead.
OLDER: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nvmlDeviceGetCurrentClocksEventReasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    "nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo", ()),
}


class Lost(Exception):
    """The driver says that the GPU has fallen off the bus; each further call would wait and print an Xid."""


class Gpu:
    """One GPU in one round: asks call by call, keeps what failed."""

    def __init__(self, handle: Any, told: Answer) -> None:
        self.handle = handle
        self.told = told
        self.errors: dict[str, str] = {}

    def ask(self, call: str, *arguments: Any) -> Any:
        """Return what a call says, None where it failed; raises Lost."""
        try:
            return self._call(call, arguments)
        except nvml.NVMLError as error:
            self.errors[call] = str(error)
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise Lost from None
            return None

    def _call(self, call: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(nvml, call)(self.handle, *arguments)
        except nvml.NVMLError as error:
            older = OLDER.get(call)
            if older is None or error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return getattr(nvml, older[0])(self.handle, *older[1])

    def read(self, readings: tuple[Reading, ...]) -> Iterator[tuple[str, Any]]:
        """Yield the key and value of each reading that did not fail."""
        for key, call, arguments, convert in readings:
            value = self.ask(call, *arguments)
            if value is None:
                continue
            try:
                yield key, convert(value)
            except nvml.NVMLError as error:  # a field value carries its own result
                self.errors[call] = str(error)


class Cards:
    """What is asked once for each card and kept from round to round."""

    def __init__(self) -> None:
        self._identities: dict[str, Answer] = {}
        self._links: dict[str, int] = {}
        self._peers: dict[tuple[str, str], bool] = {}

    def look(self, gpu: Gpu) -> None:
        """Fill in what one GPU tells."""
        told = gpu.told
        try:
            told["uuid"] = uuid = gpu.ask("nvmlDeviceGetUUID") or ""
            told.update(self._identity(gpu, uuid))
            told.update(gpu.read(STATE))
            told["links"] = self._links_of(gpu, uuid)
        except Lost:
            told["lost"] = True
        if rows := told.pop("rows", None):
            told["remapped"] = rows[0] + rows[1]
            told["remap_pending"], told["remap_failed"] = bool(rows[2]), bool(rows[3])
        if memory := told.pop("memory", None):
            told["memory_total"], told["memory_used"] = memory
        if gpu.errors:
            told["errors"] = gpu.errors

    def _identity(self, gpu: Gpu, uuid: str) -> Answer:
        if uuid in self._identities:
            return self._identities[uuid]
        identity = dict(gpu.read(IDENTITY))
        if uuid:
            self._identities[uuid] = identity
        return identity

    def _links_of(self, gpu: Gpu, uuid: str) -> list[bool]:
        states = []
        for link in range(self._links.get(uuid, MOST_LINKS)):
            try:
                states.append(bool(nvml.nvmlDeviceGetNvLinkState(gpu.handle, link)))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    gpu.errors["nvmlDeviceGetNvLinkState"] = str(error)
                    raise Lost from None
                if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    gpu.errors["nvmlDeviceGetNvLinkState"] = str(error)
                    return []
                break  # it has no more of them
        if uuid:
            self._links[uuid] = len(states)
        return states

    def peers(self, gpus: list[Gpu]) -> list[tuple[str, str]]:
        """Return the pairs of addresses joined by NVLink or below one PCIe switch; each pair is asked once."""
        pairs = []
        for place, one in enumerate(gpus):
            for other in gpus[place + 1 :]:
                key = (one.told["uuid"] + other.told["uuid"], one.told["address"] + other.told["address"])
                if key not in self._peers:
                    self._peers[key] = _joined(one.handle, other.handle)
                if self._peers[key]:
                    pairs.append((one.told["address"], other.told["address"]))
        return pairs


def _joined(one: Any, other: Any) -> bool:
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return True
    with suppress(nvml.NVMLError):
        return bool(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other) <= nvml.NVML_TOPOLOGY_SINGLE)
    return False


def _recovery(field: Any) -> str:
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    number = int(field.value.uiVal)
    return RECOVERY[number] if number < len(RECOVERY) else f"action-{number}"


def _by_index(answer: Answer) -> Iterator[Gpu]:
    """Yield the GPUs that have a handle; those that have none are counted in `unplaced`, with NVML's words."""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            pci = nvml.nvmlDeviceGetPciInfo(handle)
        except nvml.NVMLError as error:
            answer["unplaced"].append(str(error))
            continue
        address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        yield Gpu(handle, {"address": address, "index": index})


def _by_address(address: str) -> Gpu | None:
    """Return the GPU that should be at an address; None where the driver knows none there."""
    call = "nvmlDeviceGetHandleByPciBusId"
    try:
        return Gpu(nvml.nvmlDeviceGetHandleByPciBusId(address), {"address": address})
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
            return None
        gpu = Gpu(None, {"address": address, "errors": {call: str(error)}})
        gpu.told["lost"] = error.value == nvml.NVML_ERROR_GPU_IS_LOST
        return gpu


def take(question: Answer, cards: Cards) -> Answer:
    """Make one round and return its answer; raises nothing that NVML can cause."""
    answer: Answer = {"round": question["round"], "gpus": [], "unplaced": []}
    try:
        # Flag 1, NVML_INIT_FLAG_NO_GPUS: that none is left is an answer, no failure.
        nvml.nvmlInitWithFlags(nvml.NVML_INIT_FLAG_NO_GPUS)
    except nvml.NVMLError as error:
        answer["error"], answer["code"] = str(error), error.value
        return answer
    try:
        answer["driver"] = _said("nvmlSystemGetDriverVersion")
        answer["library"] = _said("nvmlSystemGetNVMLVersion")
        answer["cuda"] = _said("nvmlSystemGetCudaDriverVersion")
        gpus = list(_by_index(answer))
        seen = {one.told["address"] for one in gpus}
        gpus += [one for address in question["at"] if address not in seen and (one := _by_address(address))]
        for gpu in gpus:
            if gpu.handle is not None:
                cards.look(gpu)
        answer["gpus"] = [gpu.told for gpu in gpus]
        answer["peers"] = cards.peers([gpu for gpu in gpus if gpu.told.get("uuid")])
    except nvml.NVMLError as error:
        answer["error"], answer["code"] = str(error), error.value
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return answer


def _said(call: str) -> Any:
    try:
        return getattr(nvml, call)()
    except nvml.NVMLError:
        return ""


def _again(line: str, out: int) -> None:
    """Become a fresh process, with the library of today, that begins with this question; pipes and pid stay."""
    os.dup2(out, 1)
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    os.execv(sys.executable, [sys.executable, *options, line])


def main() -> None:
    """Answer until the standard input ends."""
    # Whatever a library prints goes to the standard error; the answers have a descriptor of their own.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with suppress(OSError):
        Path("/proc/self/comm").write_text(COMM)
    # Where pynvml comes without compiled code, compiling it has left 11 MiB that glibc keeps for later.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    cards, library = Cards(), Library()
    first = sys.argv[1:]
    while line := (first.pop() if (fresh := bool(first)) else sys.stdin.readline()):
        answer = take(json.loads(line), cards)
        library.find()
        if answer.get("error") and not fresh and library.is_old():
            _again(line, out.fileno())
        answer["disk"] = library.version()
        out.write(json.dumps(answer, separators=(",", ":")) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
