"""The record of an adoption: comment lines at the head of the drop-in that it wrote.

It lies where its effect lies, so that the two cannot come apart, and it is written for a shell to read as well: the
start at boot without bandog and the package's removal must work when no Python does (`adopted-units`).

    #@ unit NAME            the unit
    #@ file PATH            a file that the adoption wrote, and that taking it back removes
    #@ link PATH TARGET     a symbolic link by which the unit was started at boot, and which is taken away meanwhile
    #@ mute PATH            a drop-in that keeps a quadlet's own [Install] from starting it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..host.paths import Paths

UNITS = "/etc/systemd/system"
QUADLETS = "/etc/containers/systemd"
NAMES = ("50-bandog.conf", "zzz-bandog.conf")
MUTE = "zzz-bandog-start.conf"
MUTED = "[Install]\nWantedBy=\nRequiredBy=\n"
_MARK = "#@ "


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link: where it lies, and what it names."""

    path: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What an adoption did to a unit; `place` is the drop-in that says so."""

    unit: str
    place: str
    files: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    mute: str = ""

    @property
    def starts(self) -> bool:
        """Whether bandog is to start it at boot, because it did so itself before."""
        return bool(self.links or self.mute)

    @property
    def head(self) -> str:
        """The lines at the head of the drop-in."""
        lines = [f"unit {self.unit}", *(f"file {one}" for one in self.files)]
        lines += [f"link {one.path} {one.target}" for one in self.links]
        if self.mute:
            lines.append(f"mute {self.mute}")
        said = f"# Written by bandog; `bandog adopt --undo {self.unit}` takes it back.\n"
        return said + "".join(f"{_MARK}{line}\n" for line in lines)


def parse(text: str, place: str) -> Record | None:
    """Return the record at the head of a drop-in, None where it holds none."""
    unit, files, links, mute = "", [], [], ""
    for line in text.splitlines():
        if not line.startswith(_MARK):
            continue
        words = line.removeprefix(_MARK).split()
        match words:
            case ["unit", name]:
                unit = name
            case ["file", path]:
                files.append(path)
            case ["link", path, target]:
                links.append(Link(path=path, target=target))
            case ["mute", path]:
                mute = path
    return Record(unit=unit, place=place, files=tuple(files), links=tuple(links), mute=mute) if unit else None


def records(paths: Paths) -> Iterator[Record]:
    """Yield the record of every adopted unit of this host, by place."""
    for tree, kind in ((UNITS, "*.service.d"), (QUADLETS, "*.container.d")):
        for folder in sorted(paths.at(tree).glob(kind)):
            for name in NAMES:
                found = read(paths, f"{tree}/{folder.name}/{name}")
                if found is not None:
                    yield found


def record_of(paths: Paths, unit: str) -> Record | None:
    """Return the record of a unit, None where it is not adopted."""
    return next((one for one in records(paths) if one.unit == unit), None)


def read(paths: Paths, place: str) -> Record | None:
    """Return the record in a drop-in, None where there is none that can be read."""
    try:
        return parse(paths.at(place).read_text("utf-8"), place)
    except (OSError, UnicodeDecodeError):
        return None


def is_sound(record: Record) -> bool:
    """Return whether a record names only what an adoption may have made; a person may have edited it."""
    files = (Path(one) for one in record.files)
    links = (Path(one.path) for one in record.links)
    return (
        all(
            one.parts[:2] == ("/", "etc") and one.parent.name == "services.d" and one.suffix == ".yaml" for one in files
        )
        and all(one.is_relative_to(UNITS) and ".." not in one.parts and one.name == record.unit for one in links)
        and (not record.mute or Path(record.mute).name == MUTE)
    )
