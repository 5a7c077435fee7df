"""Tasks of the host, read from /proc.

For a task in D state only `stat status comm wchan stack cgroup` are read: `cmdline`, `environ` and
`maps` take the task's memory lock and would hang with it (DESIGN section 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .paths import Paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thread: `pid` is its own id, `tgid` its process, `state` the letter, `start` clock ticks since boot.

    `switches` is voluntary plus involuntary context switches, `cpu_ticks` user plus system time.
    """

    pid: int
    tgid: int
    comm: str
    state: str
    start: int
    ppid: int = 0
    switches: int | None = None
    cpu_ticks: int = 0


def task_state(paths: Paths, pid: int, tid: int | None = None) -> Task | None:
    """Read one task; None when it has gone. Never touches a file that can block on the task."""
    base = paths.proc / str(pid)
    if tid is not None:
        base = base / "task" / str(tid)
    try:
        stat = (base / "stat").read_bytes().decode("utf-8", "backslashreplace")
    except (OSError, ValueError):
        return None
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or "(" not in head:
        return None
    number, _, comm = head.partition("(")
    return Task(
        pid=int(number),
        tgid=pid,
        comm=comm,
        state=fields[0],
        ppid=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start=int(fields[19]),
        switches=_switches(base),
    )


def _switches(base: Path) -> int | None:
    try:
        text = (base / "status").read_text("utf-8", "backslashreplace")
    except OSError:
        return None
    found = [
        line.split(":")[1] for line in text.splitlines() if line.endswith("") and "ctxt_switches:" in line
    ]
    return sum(int(value) for value in found) if found else None


def tasks_in_cgroup(paths: Paths, control_group: str) -> Iterator[Task]:
    """Yield every thread of a cgroup-v2 path (as systemd's ControlGroup) and of the groups below it."""
    top = paths.sys / "fs/cgroup" / control_group.lstrip("/")
    if not control_group or not top.is_dir():
        return
    for listing in [top / "cgroup.procs", *top.glob("**/cgroup.procs")]:
        try:
            pids = {int(word) for word in listing.read_text().split()}
        except (OSError, ValueError):
            continue
        for pid in sorted(pids):
            try:
                threads = [int(entry.name) for entry in (paths.proc / str(pid) / "task").iterdir()]
            except (OSError, ValueError):
                continue
            for tid in sorted(threads):
                task = task_state(paths, pid, tid)
                if task is not None:
                    yield task
