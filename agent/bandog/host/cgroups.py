"""Control groups: which group a process is in, and who is in a group.

systemd gives each unit a group. Three layouts are known: version 2 alone, and the legacy and hybrid
ones, where systemd's own tree is the hierarchy `name=systemd` (cgroups(7), systemd's CGROUP_DELEGATION).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from .paths import Paths

_PARENTS = ("user@", "docker", "kubepods", "burstable", "besteffort", "pod", "machine", "libpod_parent")
_MOST_FOLDERS = 8192  # a container may nest groups at will
_CONTROLLERS = ("cgroup.", "cpu.", "cpuset.", "io.", "memory.", "hugetlb.", "pids.", "rdma.", "misc.", "devices.")


def control_group(paths: Paths, pid: int) -> str | None:
    """Return the path of the group that a task is in, as systemd's ControlGroup spells it; None if it has gone.

    A task in D state may be asked. A thread's id works as well as a process's.
    """
    try:
        file = os.open(f"{paths.proc}/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(file, 65536).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    finally:
        os.close(file)
    return of_listing(text)


def of_listing(text: str) -> str | None:
    """Return systemd's path from the text of /proc/<pid>/cgroup: the version 2 line, else `name=systemd`."""
    unified, named = None, None
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        path = path.removesuffix(" (deleted)")
        if hierarchy == "0" and not controllers:
            unified = path
        elif controllers == "name=systemd":
            named = path
    return named if unified in (None, "/") and named is not None else unified


def roots(paths: Paths) -> list[str]:
    """Return where systemd's tree is mounted: the places to look below, best first."""
    top = f"{paths.sys}/fs/cgroup"
    if os.path.exists(f"{top}/cgroup.controllers"):  # noqa: PTH110 - cost
        return [top]
    return [place for place in (f"{top}/systemd", f"{top}/unified", top) if os.path.isdir(place)]  # noqa: PTH112


def processes_in(paths: Paths, group: str) -> list[int]:
    """Return the processes of a group and of all groups below it, in order; empty where there is no such group."""
    if not group.strip("/"):
        return []
    found: set[int] = set()
    for root in roots(paths):
        found.update(pid for folder in folders_below(f"{root}/{group.strip('/')}") for pid in listed(folder))
        if found:
            break
    return sorted(found)


def listed(folder: str) -> list[int]:
    """Return the processes that the group at `folder` itself lists; empty when it has gone."""
    try:
        file = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        parts = []
        while part := os.read(file, 65536):
            parts.append(part)
    except OSError:  # a threaded group lists its processes at the top of its domain only
        return []
    finally:
        os.close(file)
    return [int(word) for word in b"".join(parts).split() if word.isdigit()]


def folders_below(top: str) -> Iterator[str]:
    """Yield `top`, where it exists, and the groups below it, at most `_MOST_FOLDERS` of them."""
    waiting = [top]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        folder = waiting.pop()
        below = _folders_in(folder)
        if below is not None:
            yield folder
            waiting.extend(path for _, path in below)


def _folders_in(folder: str) -> list[tuple[str, str]] | None:
    """Return (name, path) of the groups right below one; None when it has gone."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return None


def folders_of_units(paths: Paths, units: Iterable[str]) -> dict[str, str]:
    """Return unit → folder of its group for those units that have one now, searched below every slice."""
    wanted = {escaped(unit): unit for unit in units}
    found: dict[str, str] = {}
    for root in roots(paths):
        for folder in folders_where(root, wanted.__contains__):
            found.setdefault(wanted[folder.rpartition("/")[2]], folder)
        if len(found) == len(wanted):
            break
    return found


def folders_where(root: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the groups whose folder name is `wanted`, looking below what only holds other groups.

    That is slices, the managers of users, and the parents that container engines make themselves.
    """
    waiting = [root]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        for name, path in _folders_in(waiting.pop()) or ():
            if wanted(name):
                yield path
            elif name.endswith(".slice") or name.startswith(_PARENTS):
                waiting.append(path)


def escaped(unit: str) -> str:
    """Return the folder name of a unit: names that look like a control file get a leading underscore."""
    clash = unit in ("notify_on_release", "release_agent", "tasks") or unit.startswith(("_", ".", *_CONTROLLERS))
    return f"_{unit}" if clash else unit


def unescaped(folder: str) -> str:
    """Return the unit name of a folder name."""
    return folder.removeprefix("_")
