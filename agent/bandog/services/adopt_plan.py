"""What adopting a unit would write, and what taking it back would: as values, to be shown before anything happens."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..domain.gpus import KnownGpu
from ..domain.model import EMPTY
from .adopt_command import Command, read
from .adopt_devices import Devices, devices_of
from .adopt_model import Model
from .adopt_profiles import Proposal, propose
from .adopt_record import MUTE, MUTED, NAMES, Link, Record
from .adopt_service import service_text
from .adopt_unit import Found
from .overrides import path_of
from .registry import Service

SERVICES = "services.d"
_VARIABLES = ("TP_SIZE", "MODEL_TP_SIZE", "ADOPTED_TP_SIZE")
_AFTER_US = ("ExecStart", "Environment", "EnvironmentFile", "UnsetEnvironment", "Exec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file: the text that it is to have, None to remove it."""

    path: str
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is to be done, in the order in which it must be: see `adopt_write`."""

    unit: str
    service: str = ""
    changes: tuple[Change, ...] = ()
    unlink: tuple[Link, ...] = ()
    link: tuple[Link, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a plan must know besides the unit.

    `existing` is the service of this unit that is configured already, `names` those of all services; `record` that of
    an earlier adoption. `starts` is true where bandog can start services at boot on this host. `memory` is the
    smallest card's in bytes. `etc` and `run` are the directories as the unit is to name them.
    """

    name: str = ""
    existing: Service | None = None
    names: Collection[str] = ()
    record: Record | None = None
    starts: bool = True
    cards: Sequence[KnownGpu] = ()
    model: Model | None = None
    memory: int | None = None
    etc: str = "/etc/bandog"
    run: str = "/run/bandog"


@dataclass(slots=True, kw_only=True)
class _Draft:
    """What is found out step by step."""

    line: str
    env: dict[str, str] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    proposals: tuple[Proposal, ...] = ()
    variable: str = ""
    gpus: str | tuple[str, ...] | None = None


def command_of(found: Found) -> Command | None:
    """Return the command line of a unit; None where it has several, or none."""
    if found.quadlet:
        image = found.text.last("Container", "Image")
        return read(found.text.last("Container", "Exec"), found.env, image=image or "unknown")
    lines = found.text.values("Service", "ExecStart")
    return read(lines[0], found.env) if len(lines) == 1 else None


def plan(found: Found, around: Surroundings) -> Plan:
    """Return what adopting a unit writes. Pure."""
    command = command_of(found)
    draft = _drafted(found, command, around)
    service = around.existing.name if around.existing is not None else _name(found.unit, around)
    record = _record(found, around, service, draft)
    changes = [Change(path=record.place, text=record.head + _drop_in(found, command, draft, around))]
    if around.existing is None:
        changes.append(
            Change(
                path=f"{around.etc}/{SERVICES}/{service}.yaml",
                text=service_text(
                    found, command, service, gpus=draft.gpus, proposals=draft.proposals, variable=draft.variable
                ),
            )
        )
    else:
        draft.remarks.append(f"{around.existing.file or service} describes the service already and stays as it is")
    if record.mute:
        changes.append(Change(path=record.mute, text=MUTED))
    return Plan(
        unit=found.unit,
        service=service,
        changes=tuple(changes),
        unlink=record.links,
        remarks=tuple(draft.remarks),
    )


def undo(record: Record, more: Collection[str] = ()) -> Plan:
    """Return what takes an adoption back; `more` are files that came of it later. The record goes last."""
    gone = [*((record.mute,) if record.mute else ()), *record.files, *more, record.place]
    return Plan(unit=record.unit, changes=tuple(Change(path=one, text=None) for one in gone), link=record.links)


def _drafted(found: Found, command: Command | None, around: Surroundings) -> _Draft:
    """Find out what can be put into variable form; what cannot is said."""
    if command is None:
        many = len(found.text.values("Service", "ExecStart"))
        said = f"it has {many} ExecStart= lines" if many else "it has no ExecStart="
        return _Draft(line="", remarks=[f"no relaunch on fewer GPUs: {said}"])
    devices = devices_of(found, command, around.cards)
    draft = _Draft(line=command.line, gpus=devices.gpus, remarks=list(devices.remarks))
    blocked = devices.blocked or _unsized(command)
    if blocked:
        draft.remarks.append(f"no relaunch on fewer GPUs: {blocked}")
        if draft.gpus is None:
            draft.remarks.append("which GPUs it uses is not seen; if any, set `gpus:` in its file")
        return draft
    _size(found, replace(command, line=devices.line), around, draft, devices)
    return draft


def _unsized(command: Command) -> str:
    """Return why the tensor parallel size cannot be a variable, "" where it can."""
    places = command.parallel
    if command.literal:
        return "the `:` before its command keeps variables as they are"
    if not command.engine:
        return "what serves there is not known (vLLM, SGLang and TGI are)"
    if command.nodes > 1:
        return f"it spans {command.nodes} hosts"
    if len(places) > 1:
        return f"its command line names {places[0].option} more than once"
    if not places and command.engine == "tgi":
        return "TGI takes every GPU that it sees; give it --num-shard N"
    if places and places[0].variable and not command.env.get(places[0].variable, "").isdecimal():
        return f"the value of ${{{places[0].variable}}} is not seen"
    return ""


def _size(found: Found, command: Command, around: Surroundings, draft: _Draft, devices: Devices) -> None:
    places = command.parallel
    size, line = 1, command.line
    if places and places[0].variable:
        draft.variable = places[0].variable
        size = int(command.env[draft.variable])
    elif places:
        one = places[0]
        assert one.count is not None
        size = one.count
        draft.variable = _variable(found, around.existing, size)
        line = f"{line[: one.start]}${{{draft.variable}}}{line[one.end :]}"
        draft.env[draft.variable] = str(size)
    if size < 1:
        draft.remarks.append(f"no relaunch on fewer GPUs: {size} is no tensor parallel size")
        return
    draft.line = line
    draft.env.update(devices.defaults)
    draft.settings += devices.settings
    if around.existing is None:
        draft.proposals = propose(command, size, around.model, around.memory)


def _variable(found: Found, existing: Service | None, size: int) -> str:
    """Return the variable for the size: the one of the service's best profile, else one that the unit does not set."""
    best: Mapping[str, str] = existing.profiles[0].get("env", EMPTY) if existing and existing.profiles else EMPTY
    for name, value in best.items():
        if str(value) == str(size):
            return str(name)
    return next((name for name in _VARIABLES if name not in found.env), _VARIABLES[-1])


def _name(unit: str, around: Surroundings) -> str:
    if around.name:
        return around.name
    if around.record is not None and around.record.files:
        return Path(around.record.files[0]).stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", unit.removesuffix(".service")).strip("-._")[:60] or "service"
    return name if name not in around.names else f"{name}-2"


def _record(found: Found, around: Surroundings, service: str, draft: _Draft) -> Record:
    """Return the record of this adoption, which keeps what an earlier one did."""
    old = around.record
    files = () if around.existing is not None else (f"{around.etc}/{SERVICES}/{service}.yaml",)
    links = tuple(dict.fromkeys([*(old.links if old else ()), *found.links]))
    mute = ""
    if found.quadlet and (found.text.values("Install", "WantedBy") or found.text.values("Install", "RequiredBy")):
        mute = f"{found.folder}/{MUTE}"
    if not around.starts and (links or mute):
        draft.remarks.append(
            "its start at boot stays as it is: bandog-services.service is not enabled "
            "(systemctl enable bandog-services.service)"
        )
        links, mute = (), ""
    draft.remarks += [f"{one} starts it at boot as well, and belongs to a package" for one in found.fixed]
    files = tuple(dict.fromkeys([*(old.files if old else ()), *files]))
    return Record(unit=found.unit, place=f"{found.folder}/{_file(found)}", files=files, links=links, mute=mute)


def _file(found: Found) -> str:
    """Return the drop-in's name: one that counts after every other that sets what it sets."""
    section = "Container" if found.quadlet else "Service"
    files = [*found.text.files_with(section, _AFTER_US), *found.text.files_with("Service", _AFTER_US)]
    later = [one for one in files if Path(one).suffix == ".conf" and Path(one).name > NAMES[0]]
    return NAMES[1] if later else NAMES[0]


def _drop_in(found: Found, command: Command | None, draft: _Draft, around: Surroundings) -> str:
    own = path_of(Path(around.run), found.unit)
    lines = ["[Service]", "IOAccounting=yes"]
    lines += [f'Environment="{name}={_escaped(value)}"' for name, value in draft.env.items()]
    lines.append(f"EnvironmentFile=-{own}")
    changed = command is not None and draft.line != command.line
    if found.quadlet:
        if changed or draft.settings:
            lines += ["", "[Container]", *([f"Exec={draft.line}"] if changed else []), *draft.settings]
    elif changed:
        lines += ["ExecStart=", f"ExecStart={draft.line}"]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
