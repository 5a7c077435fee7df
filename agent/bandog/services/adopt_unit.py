"""Reads a unit that is to be adopted: its files as they are on the disk, and how it is started at boot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..domain.model import EMPTY
from ..host.paths import Paths
from ..host.systemd_types import UnitState
from .adopt_record import MUTE, NAMES, QUADLETS, UNITS, Link
from .adopt_text import UnitText, parse, split

_OURS = re.compile(r"bandog(-[a-z-]+)?\.service\Z")
_BOOT = ("multi-user.target", "default.target", "graphical.target")
_LOAD = {
    "not-found": "there is no unit {unit}",
    "masked": "{unit} is masked",
    "error": "{unit} cannot be loaded; see systemctl status {unit}",
    "bad-setting": "{unit} has a setting that systemd refuses; see systemctl status {unit}",
}
_QUADLET_FOLDERS = (QUADLETS, "/run/containers/systemd", "/usr/share/containers/systemd")


class Refused(Exception):
    """The unit cannot be adopted; the text is one line for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A unit as its files say it, without a drop-in of ours.

    `source` is the file that a person edits: the fragment, or the `.container` file of a quadlet. `links` start it at
    boot and are an administrator's; `fixed` are those of a package, which nobody takes away. `env` is what its
    `Environment=` and its environment files set, as far as they can be read.
    """

    unit: str
    source: str
    text: UnitText
    quadlet: bool = False
    links: tuple[Link, ...] = ()
    fixed: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    @property
    def folder(self) -> str:
        """Where drop-ins for it lie."""
        return f"{QUADLETS}/{Path(self.source).name}.d" if self.quadlet else f"{UNITS}/{self.unit}.d"


def check_name(unit: str) -> str:
    """Return the full name of a unit as a person named it. Raises Refused for what cannot be adopted at all."""
    name = unit if "." in unit else f"{unit}.service"
    if not name.endswith(".service"):
        raise Refused(f"{name} is no service unit")
    if re.fullmatch(r"[A-Za-z0-9:_.\\@-]{1,240}", name) is None:
        raise Refused(f"{name!r} is no name of a unit")
    if name.endswith("@.service"):
        raise Refused(f"{name} is a template; name an instance of it, like {name.replace('@', '@NAME')}")
    if _OURS.match(name):
        raise Refused(f"{name} is bandog's own")
    return name


def read_unit(paths: Paths, state: UnitState) -> Found:
    """Return a unit by its files. Raises Refused. Blocking: for a command, not for the loop."""
    unit = state.name
    if state.load_state != "loaded":
        raise Refused(_LOAD.get(state.load_state, "{unit} is {load}").format(unit=unit, load=state.load_state))
    fragment = state.fragment_path
    if fragment.startswith("/run/systemd/transient/"):
        raise Refused(f"{unit} is transient: it has no file, and is gone when it ends")
    text = _read(paths, fragment)
    if "/generator" in fragment:
        return _quadlet(paths, unit, UnitText(settings=parse(text)).last("Unit", "SourcePath"))
    own = {f"{UNITS}/{unit}.d/{name}" for name in NAMES}
    settings = list(parse(text, fragment))
    for place in state.drop_in_paths:
        if place not in own:
            settings += parse(_read(paths, place), place)
    links, fixed = _links(paths, unit)
    whole = UnitText(settings=tuple(settings))
    return Found(unit=unit, source=fragment, text=whole, links=links, fixed=fixed, env=_environment(paths, whole))


def _quadlet(paths: Paths, unit: str, source: str) -> Found:
    if not source.endswith(".container"):
        raise Refused(f"{unit} is made by a generator from {source or 'something unknown'}, which bandog cannot change")
    settings = list(parse(_read(paths, source), source))
    drops: dict[str, str] = {}
    for tree in reversed(_QUADLET_FOLDERS):
        folder = f"{tree}/{Path(source).name}.d"
        drops.update((name, f"{folder}/{name}") for name in _listed(paths, folder) if name.endswith(".conf"))
    for name, place in sorted(drops.items()):
        if name not in (*NAMES, MUTE):
            settings += parse(_read(paths, place), place)
    whole = UnitText(settings=tuple(settings))
    return Found(unit=unit, source=source, text=whole, quadlet=True, env=_environment(paths, whole))


def _links(paths: Paths, unit: str) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Return the links of this unit's start at boot: an administrator's, and those of packages."""
    links, fixed = [], []
    for target in _BOOT:
        for kind in ("wants", "requires"):
            for tree in (UNITS, "/usr/lib/systemd/system", "/lib/systemd/system"):
                place = f"{tree}/{target}.{kind}/{unit}"
                try:
                    named = str(paths.at(place).readlink())
                except OSError:
                    continue
                if tree == UNITS and re.search(r"\s", named) is None:
                    links.append(Link(path=place, target=named))
                elif not place.startswith("/lib/") or not paths.at("/lib").is_symlink():
                    fixed.append(place)
    return tuple(links), tuple(fixed)


def _environment(paths: Paths, text: UnitText) -> Mapping[str, str]:
    """Return the unit's variables; a file wins over `Environment=`, a later file over an earlier one."""
    env = text.environment()
    for place in text.values("Service", "EnvironmentFile"):
        try:
            lines = paths.at(place.removeprefix("-")).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        for line in lines:
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith(("#", ";")):
                env[name.strip()] = "".join(split(value))
    return env


def _read(paths: Paths, place: str) -> str:
    try:
        return paths.at(place).read_text("utf-8")
    except OSError as error:
        raise Refused(f"cannot read {place or 'its unit file'}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{place} is no UTF-8") from error


def _listed(paths: Paths, folder: str) -> Iterable[str]:
    try:
        return [one.name for one in paths.at(folder).iterdir()]
    except OSError:
        return ()
