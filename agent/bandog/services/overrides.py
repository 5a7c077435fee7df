"""What a relaunch has put in force: one environment file a unit, which systemd reads at each start of it.

The file lies in /run/bandog/env and is root's alone, as a profile may hold a secret. It outlives a stop, an upgrade
and the death of bandog, so that a unit which systemd itself restarts still runs without the bad card; a reboot drops
it. Its first line is the record of why it is there, so that it and what it tells cannot come apart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..domain.gpus import GpuLook, KnownGpu, Look
from ..domain.model import EMPTY, Instant
from .env_file import is_ours, render
from .profiles import Choice, Refusal, choose, reasons_of, short
from .registry import Service

FOLDER = "env"
_MARK = "bandog: "
_MOST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What is in force for a unit: its GPUs (PCI addresses), those that it runs `without`, since when, why.

    `place` is the profile's in the service's list, from 0, None where only `names` of variables were set; `incident`
    is None after a boot that found a card out.
    """

    unit: str
    service: str
    since: datetime
    gpus: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    place: int | None = None
    incident: int | None = None
    names: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """On what it runs, for people: `on 2 GPUs (17:00.0, 65:00.0) without e5:00.0`."""
        said = []
        if self.gpus:
            many = "s" if len(self.gpus) > 1 else ""
            said.append(f"on {len(self.gpus)} GPU{many} ({', '.join(short(one) for one in self.gpus)})")
        if self.without:
            said.append(f"without {', '.join(short(one) for one in self.without)}")
        if self.names:
            said.append(f"with {', '.join(self.names)} set")
        return " ".join(said) or "with an environment of bandog"

    def __str__(self) -> str:
        by = f", by incident {self.incident}" if self.incident is not None else ", as found at boot"
        return f"runs {self.where} since {self.since:%Y-%m-%d %H:%M} UTC{by}"


def check(env: Mapping[str, str]) -> None:
    """Raise ValueError for a variable that cannot be set besides: bandog's own, or one that systemd would not take."""
    ours = next((name for name in env if is_ours(name)), None)
    if ours is not None:
        raise ValueError(f"{ours} is set by bandog itself")
    render(env)


def path_of(run: Path, unit: str) -> Path:
    """Return where a unit's environment file lies below the runtime directory (`Paths.run`).

    systemd takes the path for a pattern, in which a backslash (as in `vllm\\x2dqwen.service`) would quote the next
    letter, so it is spelled `+`, which no unit has. Raises ValueError for what is no unit's name.
    """
    if not unit or "/" in unit or "+" in unit or unit.startswith(".") or not unit.isascii() or not unit.isprintable():
        raise ValueError(f"{unit!r} is no unit")
    return run / FOLDER / f"{unit.replace(chr(92), '+')}.env"


def in_force(run: Path, unit: str) -> Override | None:
    """Return what is in force for a unit, None without. A file whose first line is no record of ours tells little."""
    try:
        with path_of(run, unit).open("rb") as file:
            first = file.readline(_MOST)
            since = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
    except (OSError, ValueError):
        return None
    try:
        said = json.loads(first.decode("utf-8").removeprefix(f"# {_MARK}"))
        return Override(
            unit=unit,
            service=str(said["service"]),
            since=datetime.fromisoformat(said["since"]),
            gpus=tuple(str(one) for one in said["gpus"]),
            without=tuple(str(one) for one in said["without"]),
            place=_number(said["profile"]),
            incident=_number(said["incident"]),
            names=tuple(str(one) for one in said["names"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return Override(unit=unit, service="", since=since)


def put(
    run: Path,
    service: Service,
    choice: Choice | None,
    *,
    without: Collection[str],
    at: Instant,
    incident: int | None = None,
    env: Mapping[str, str] = EMPTY,
) -> Override:
    """Write the file of a service's unit, whole or not at all, and return what is now in force.

    `env` are further variables, which win over the profile's. Raises OSError where it cannot be written, and
    ValueError for a variable that systemd would not take; then the old file stands as it was.
    """
    check(env)
    override = Override(
        unit=service.unit,
        service=service.name,
        since=at.utc,
        gpus=choice.addresses if choice is not None else (),
        without=tuple(without),
        place=choice.place if choice is not None else None,
        incident=incident,
        names=tuple(env),
    )
    record = {
        "service": override.service,
        "since": override.since.isoformat(),
        "gpus": override.gpus,
        "without": override.without,
        "profile": override.place,
        "incident": incident,
        "names": override.names,
    }
    variables = {**(choice.env if choice is not None else {}), **env}
    _write(path_of(run, service.unit), render(variables, comment=_MARK + json.dumps(record)))
    return override


def drop(run: Path, unit: str) -> bool:
    """Remove a unit's file; the next start of the unit is as its own files say. False where there was none."""
    try:
        path_of(run, unit).unlink()
    except (FileNotFoundError, ValueError):
        return False
    return True


def reapply(
    service: Service,
    *,
    look: Look,
    usable: Collection[GpuLook],
    known: Collection[KnownGpu],
    run: Path,
    at: Instant,
) -> Override | Refusal | None:
    """Before a start at boot: see that a service of whose cards one is out is started without it.

    Writes its environment file and returns what is in force; None where its own files will do, a Refusal where no
    profile can be satisfied (then it had better not be started). What is in force and still holds is left alone. For
    a service with profiles; raises as `put`.
    """
    if not service.profiles or not service.gpus:
        return None
    standing = in_force(run, service.unit)
    there = {one.address for one in usable}
    if standing is not None and standing.gpus and set(standing.gpus) <= there:
        return standing
    out = reasons_of(look, known)
    unusable = {one.address for one in look.gpus} - there
    missing = set(out) | unusable
    if service.gpus != "all":
        slots = {one.uuid: one.slot for one in known} | {one.uuid: one.address for one in look.gpus if one.uuid}
        missing &= {slots.get(one, one) for one in service.gpus}
    if not missing and standing is None:
        return None
    choice = choose(service, look, usable, reasons=out)
    if isinstance(choice, Refusal):
        return choice
    return put(run, service, choice, without=sorted(missing), at=at)


def _write(place: Path, text: str) -> None:
    """Write a file beside its place and move it there; nobody ever sees half of it."""
    place.parent.mkdir(mode=0o755, exist_ok=True)
    beside = place.with_name(f".{place.name}.new")
    try:
        with suppress(FileNotFoundError):
            beside.unlink()
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(place)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def _number(value: Any) -> int | None:
    return value if type(value) is int else None
