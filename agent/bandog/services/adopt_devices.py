"""How a unit's command line chooses its GPUs, in a form that an environment file can change. Pure.

A plain program obeys CUDA_VISIBLE_DEVICES, which systemd gives it. A container gets its cards when it is made: by
`--gpus`, which takes UUIDs, or by CDI; inside one that has all cards CUDA's numbers are the host's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..domain.gpus import KnownGpu
from ..domain.model import EMPTY
from ..domain.subjects import pci_order
from .adopt_command import Command
from .adopt_unit import Found

_GPUS = re.compile(r"(?<!\S)--gpus(?:=|\s+)(?P<value>'\"[^'\"]*\"'|\"[^\"]*\"|'[^']*'|[^\s'\"]+)(?!\S)")
_NVIDIA = re.compile(r"(?<![\w-])NVIDIA_VISIBLE_DEVICES=(?P<value>[\w,-]+)")
_CDI = re.compile(r"(?<!\S)--device(?:=|\s+)nvidia\.com/gpu=(?P<value>[\w:.-]+)")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
UUIDS = "BANDOG_GPU_UUIDS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
PASSED = f"--env={VISIBLE} --env=CUDA_DEVICE_ORDER"
"""Without a value the client passes on what it was given, and nothing where it was given nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The `line` as it is to be, with `defaults` under which it does what it did.

    `gpus` is the service's: "all", a list, or None where that is not seen. `settings` are further lines of a quadlet.
    `blocked` says why another choice of GPUs cannot be given to it, "" where it can.
    """

    line: str
    gpus: str | tuple[str, ...] | None = None
    defaults: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    settings: tuple[str, ...] = ()
    blocked: str = ""
    remarks: tuple[str, ...] = ()


def devices_of(found: Found, command: Command, cards: Sequence[KnownGpu]) -> Devices:
    """Return how a unit chooses its GPUs; `cards` are those that the inventory knows."""
    unset = [word for value in found.text.values("Service", "UnsetEnvironment") for word in value.split()]
    if VISIBLE in unset or UUIDS in unset:
        return Devices(line=command.line, blocked=f"its UnsetEnvironment= takes {VISIBLE} away")
    if found.quadlet:
        return _of_quadlet(found, command, cards)
    if command.client:
        return _of_container(command, cards)
    if command.sets_devices:
        return Devices(line=command.line, blocked=f"its command line sets {VISIBLE} itself")
    if not command.engine:
        return Devices(line=command.line, blocked="what serves there is not known (vLLM, SGLang and TGI are)")
    return _listed(Devices(line=command.line), found.env.get(VISIBLE, "all"), cards)


def _of_container(command: Command, cards: Sequence[KnownGpu]) -> Devices:
    as_it_is = Devices(line=command.line)
    if command.verb == "compose":
        return _blocked(as_it_is, "Compose chooses the GPUs in its own file; run the container by `docker run` instead")
    if command.verb != "run":
        return _blocked(
            as_it_is,
            f"`{command.client} {command.verb}` brings back a container whose GPUs were fixed when it was made; "
            f"make it anew at each start by `{command.client} run --rm`",
        )
    if command.wrapped:
        return _blocked(as_it_is, "a shell inside its command line runs the container")
    if command.sets_devices:
        return _blocked(as_it_is, f"its command line sets {VISIBLE} inside the container")
    for pattern, form in (
        (_GPUS, f"""'"device=${{{UUIDS}}}"'"""),
        (_NVIDIA, f"${{{UUIDS}}}"),
    ):
        match = pattern.search(command.line)
        if match is not None:
            return _by_names(command, match, form, cards, is_gpus=pattern is _GPUS)
    match = _CDI.search(command.line)
    if match is None:
        return _blocked(as_it_is, "how its container gets GPUs is not seen: --gpus, NVIDIA_VISIBLE_DEVICES or CDI")
    if match["value"] != "all":
        return _blocked(as_it_is, "its container gets single GPUs by CDI; give it nvidia.com/gpu=all, or use --gpus")
    line = f"{command.line[: match.end()]} {PASSED}{command.line[match.end() :]}"
    return Devices(line=line, gpus="all")


def _by_names(
    command: Command, match: re.Match[str], form: str, cards: Sequence[KnownGpu], *, is_gpus: bool
) -> Devices:
    value = match["value"].strip("'\"")
    if value == f"device=${{{UUIDS}}}" or value == f"${{{UUIDS}}}":
        return Devices(line=command.line, gpus="all")
    named = value.removeprefix("device=") if is_gpus else value
    if is_gpus and value != "all" and (not value.startswith("device=") or "=" in named):
        why = f"--gpus {match['value']} names no cards; write --gpus all, or a list of devices"
        return _blocked(Devices(line=command.line), why)
    line = command.line[: match.start("value")] + form + command.line[match.end("value") :]
    return _listed(Devices(line=line, defaults={UUIDS: named}), named, cards)


def _of_quadlet(found: Found, command: Command, cards: Sequence[KnownGpu]) -> Devices:
    as_it_is = Devices(line=command.line)
    inside = found.text.environment("Container")
    given = [one for value in found.text.values("Container", "AddDevice") for one in value.split()]
    arguments = " ".join(found.text.values("Container", "PodmanArgs"))
    given += [f"nvidia.com/gpu={one['value']}" for one in _CDI.finditer(arguments)]
    names = {one.removeprefix("nvidia.com/gpu=") for one in given if one.startswith("nvidia.com/gpu=")}
    if VISIBLE in inside or command.sets_devices or VISIBLE in arguments:
        if PASSED in arguments:
            return Devices(line=command.line, gpus="all")
        return _blocked(as_it_is, f"it sets {VISIBLE} inside the container")
    if names != {"all"}:
        why = "it gets single GPUs" if names else "how it gets GPUs is not seen"
        return _blocked(as_it_is, f"{why}; AddDevice=nvidia.com/gpu=all gives it all, of which CUDA then takes some")
    return Devices(line=command.line, gpus="all", settings=(f"PodmanArgs={PASSED}",))


def _listed(devices: Devices, value: str, cards: Sequence[KnownGpu]) -> Devices:
    """Return the devices with `gpus` as a list of UUIDs or numbers says; numbers are ranks by PCI address."""
    parts = [one.strip() for one in value.split(",") if one.strip()]
    if value == "all" or not parts:
        return _with(devices, "all")
    if all(_UUID.match(one) for one in parts):
        return _with(devices, tuple(parts))
    there = sorted((one for one in cards if one.expected), key=lambda one: pci_order(one.slot))
    if all(one.isdecimal() and int(one) < len(there) for one in parts):
        names = tuple(there[int(one)].slot for one in parts)
        return _with(devices, names, f"GPUs {value} are taken in the order of PCI addresses: {', '.join(names)}")
    return _with(devices, None, f"which cards GPUs {value} are is not known yet; set `gpus:` to their addresses")


def _with(devices: Devices, gpus: str | tuple[str, ...] | None, *remarks: str) -> Devices:
    return Devices(line=devices.line, gpus=gpus, defaults=devices.defaults, remarks=remarks)


def _blocked(devices: Devices, why: str) -> Devices:
    return Devices(line=devices.line, gpus=devices.gpus, blocked=why)
