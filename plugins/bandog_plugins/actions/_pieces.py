"""What goes into a bundle of evidence, piece by piece. Each piece has a deadline and may be missing.

Nothing here reads a file that can block on a stuck task or calls a GPU driver in our own process:
`ps` and everything of NVIDIA's run as children.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bandog import Request, Site, Task, task_state, to_json

_SECOND = timedelta(seconds=1)
_BEFORE, _AFTER = timedelta(minutes=10), timedelta(minutes=2)
_LOG_LINES = 200
_MOST_TASKS = 20_000
_MOST_STUCK = 100
_HOST_FILES = (
    "/proc/version",
    "/proc/cmdline",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/self/mounts",
)
_UNIT_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,MainPID,NRestarts,InvocationID,ControlGroup,KillMode,"
    "Restart,ExecMainCode,ExecMainStatus,ActiveEnterTimestamp,InactiveEnterTimestamp,"
    "MemoryCurrent,TasksCurrent,FragmentPath,DropInPaths,NeedDaemonReload"
)


class Missing(Exception):
    """A piece could not be had; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file of a bundle. `take(deadline, limit)` returns its bytes or raises Missing."""

    name: str
    deadline: timedelta
    take: Callable[[timedelta, int], bytes]


def pieces(request: Request, site: Site, units: Sequence[str]) -> list[Piece]:
    """Return what to collect, the most telling and the fastest first."""
    return [
        Piece(name="request.json", deadline=_SECOND, take=lambda deadline, limit: _request(request)),
        Piece(name="stuck-tasks.txt", deadline=5 * _SECOND, take=lambda deadline, limit: _stuck(site)),
        Piece(name="host.txt", deadline=_SECOND, take=lambda deadline, limit: _host(site, limit)),
        Piece(name="memory-errors.txt", deadline=_SECOND, take=lambda deadline, limit: _edac(site)),
        _child("kernel.txt", site, 3 * _SECOND, ["dmesg", "--color=never", "--decode"]),
        _child("kernel-journal.txt", site, 5 * _SECOND, _journal_of_kernel(request)),
        *(piece for unit in units for piece in _of_unit(site, unit)),
        _child("processes.txt", site, 5 * _SECOND, ["ps", "-e", "-ww", "-o", "pid,ppid,stat,etimes,rss,wchan:32,args"]),
        Piece(
            name="nvidia-proc.txt", deadline=3 * _SECOND, take=lambda deadline, limit: _nvidia(site, deadline, limit)
        ),
        _child("nvidia-smi.txt", site, 10 * _SECOND, ["nvidia-smi", "-q"]),
        _child("disks.txt", site, 3 * _SECOND, ["df", "-l", "-P", "-k"]),
    ]


def _of_unit(site: Site, unit: str) -> Iterable[Piece]:
    yield _child(
        f"status-{unit}.txt",
        site,
        4 * _SECOND,
        ["systemctl", "show", "--no-pager", f"--property={_UNIT_PROPERTIES}", "--", unit],
    )
    yield _child(
        f"log-{unit}.txt",
        site,
        5 * _SECOND,
        [
            "journalctl",
            "--quiet",
            "--no-pager",
            "--output=short-iso-precise",
            f"--lines={_LOG_LINES}",
            f"--unit={unit}",
        ],
    )


def _journal_of_kernel(request: Request) -> list[str]:
    since, until = request.found_at.utc - _BEFORE, request.found_at.utc + _AFTER
    return [
        "journalctl",
        "--quiet",
        "--no-pager",
        "--dmesg",
        "--output=short-iso-precise",
        f"--since=@{int(since.timestamp())}",
        f"--until=@{int(until.timestamp())}",
    ]


def _child(name: str, site: Site, deadline: timedelta, argv: Sequence[str]) -> Piece:
    def take(deadline: timedelta, limit: int) -> bytes:
        # Of a log the end tells most, so more is read than kept.
        outcome = site.child(list(argv), deadline=deadline, limit=4 * limit)
        if outcome.out:
            note = b"" if outcome.ok else f"\n[{argv[0]} {_end(outcome.code, outcome.timed_out)}]\n".encode()
            return outcome.out[-limit + len(note) :] + note
        if outcome.ok:
            raise Missing("nothing to show")
        said = outcome.err.decode("utf-8", "replace").strip().splitlines()
        raise Missing(f"{argv[0]} {_end(outcome.code, outcome.timed_out)}" + (f": {said[-1][:200]}" if said else ""))

    return Piece(name=name, deadline=deadline, take=take)


def _end(code: int | None, timed_out: bool) -> str:
    if timed_out or code is None:
        return "did not end in time"
    return "is not installed" if code == 127 else f"ended with {code}"


def _request(request: Request) -> bytes:
    return json.dumps(to_json(request), indent=2, ensure_ascii=False).encode("utf-8", "replace")


def _host(site: Site, limit: int) -> bytes:
    return b"\n".join(_section(site, place, limit // len(_HOST_FILES)) for place in _HOST_FILES)


def _section(site: Site, place: str, limit: int) -> bytes:
    return f"== {place}\n".encode() + _read(site.paths.at(place), limit)


def _read(place: Path, limit: int = 65536) -> bytes:
    try:
        with place.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        return f"[{error.strerror}]\n".encode()


def _edac(site: Site) -> bytes:
    """The counters of the EDAC core (Documentation/admin-guide/ras.rst): controllers, then modules."""
    root = site.paths.sys / "devices/system/edac/mc"
    controllers = sorted(root.glob("mc[0-9]*")) if root.is_dir() else []
    if not controllers:
        raise Missing("no memory controller is registered with EDAC")
    lines = []
    for controller in controllers:
        lines.append(_counters(controller, ("mc_name", "ce_count", "ue_count", "ce_noinfo_count", "ue_noinfo_count")))
        for module in sorted(controller.glob("dimm[0-9]*")):
            lines.append(_counters(module, ("dimm_label", "dimm_location", "dimm_ce_count", "dimm_ue_count", "size")))
    return "\n".join(lines).encode() + b"\n"


def _counters(folder: Path, names: Sequence[str]) -> str:
    found = [f"{name}={_read(folder / name, 256).decode('utf-8', 'replace').strip()}" for name in names]
    return f"{folder.parent.name}/{folder.name}: {' '.join(found)}"


def _stuck(site: Site) -> bytes:
    """Every task in D state with what may be read of it: status, wait channel, kernel stack, cgroup."""
    tasks = [task for task in _tasks(site) if task.state == "D"]
    if not tasks:
        raise Missing("no task is in D state")
    parts = []
    for task in tasks[:_MOST_STUCK]:
        base = site.paths.proc / str(task.tgid) / "task" / str(task.pid)
        parts.append(f"== {task.comm!r} pid {task.pid} process {task.tgid} parent {task.ppid}\n".encode())
        for name in ("wchan", "cgroup", "stack", "status"):
            parts.append(f"-- {name}\n".encode() + _read(base / name, 8192).rstrip() + b"\n")
    if len(tasks) > _MOST_STUCK:
        parts.append(f"[{len(tasks) - _MOST_STUCK} more]\n".encode())
    return b"".join(parts)


def _tasks(site: Site) -> Iterable[Task]:
    count = 0
    for process in sorted(site.paths.proc.glob("[0-9]*"), key=lambda one: int(one.name) if one.name.isdecimal() else 0):
        try:
            threads = sorted(int(one.name) for one in (process / "task").iterdir())
        except (OSError, ValueError):
            continue
        for thread in threads:
            count += 1
            if count > _MOST_TASKS:
                return
            task = task_state(site.paths, int(process.name), thread)
            if task is not None:
                yield task


def _nvidia(site: Site, deadline: timedelta, limit: int) -> bytes:
    root = site.paths.proc / "driver/nvidia"
    files = [root / "version", root / "params", *sorted(root.glob("gpus/*/information"))]
    found = [str(place) for place in files if place.exists()]
    if not found:
        raise Missing("no NVIDIA driver is loaded")
    outcome = site.child(["tail", "--verbose", "--bytes=+1", "--", *found], deadline=deadline, limit=limit)
    if not outcome.out:
        raise Missing(f"the driver {_end(outcome.code, outcome.timed_out)}")
    return outcome.out
