"""Shows a plan as a diff, and carries it out: each file whole or not at all, in an order that may be broken off.

Adopting writes the record first and takes the links of the start away last; taking back puts the links back first
and removes the record last. Whatever point it is broken off at, the unit starts at boot, and the same command ends it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..host.paths import Paths
from .adopt_plan import Plan
from .adopt_record import Link

_NOWHERE = "/dev/null"


def diff(plan: Plan, paths: Paths) -> str:
    """Return the plan as a unified diff against what is on the disk, "" where nothing would change."""
    parts: list[str] = []
    for change in plan.changes:
        before = _text(paths.at(change.path))
        parts += _unified(change.path, before, change.text)
    parts += [line for one in plan.unlink if _is(paths, one) for line in _of_link(one, "-")]
    parts += [line for one in plan.link if not _is(paths, one) for line in _of_link(one, "+")]
    return "".join(parts)


def carry_out(plan: Plan, paths: Paths) -> None:
    """Make the files and links as the plan says; raises OSError. Done twice is done once."""
    for one in plan.link:
        place = paths.at(one.path)
        if not os.path.lexists(place):
            place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            place.symlink_to(one.target)
            _settle(place.parent)
    for change in plan.changes:
        place = paths.at(change.path)
        if change.text is None:
            place.unlink(missing_ok=True)
            with suppress(OSError):  # it holds something of somebody else, or is gone
                if place.parent.name.endswith(".d") and place.parent.name != "services.d":
                    place.parent.rmdir()
        else:
            _write(place, change.text)
    for one in plan.unlink:
        if _is(paths, one):
            paths.at(one.path).unlink()
            _settle(paths.at(one.path).parent)


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.new")
    beside.unlink(missing_ok=True)
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(place)
    _settle(place.parent)


def _settle(folder: Path) -> None:
    """Take a folder's entries to the disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _is(paths: Paths, link: Link) -> bool:
    return paths.at(link.path).is_symlink()


def _text(place: Path) -> str | None:
    try:
        return place.read_text("utf-8", "replace")
    except OSError:
        return None


def _unified(path: str, before: str | None, after: str | None) -> Iterator[str]:
    yield from difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        (after or "").splitlines(keepends=True),
        path if before is not None else _NOWHERE,
        path if after is not None else _NOWHERE,
    )


def _of_link(link: Link, sign: str) -> Iterator[str]:
    names = (link.path, _NOWHERE) if sign == "-" else (_NOWHERE, link.path)
    yield from (f"--- {names[0]}\n", f"+++ {names[1]}\n", f"{sign}symbolic link to {link.target}\n")
