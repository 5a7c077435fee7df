"""Tasks of the host, read from /proc.

For a task in D state only `stat status comm wchan stack cgroup` are read: `cmdline`, `environ` and
`maps` take the task's memory lock and would hang with it (DESIGN section 6). Files are opened with
`os.open`, because looking at thousands of threads must cost next to nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from .cgroups import processes_in
from .paths import Paths

_SIGKILL = 1 << 8  # signal 9 in the masks of /proc/<pid>/status (proc_pid_status(5))
_MOST = 16384  # bytes read of one file; a stack has at most 64 frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thread: `pid` is its own id, `tgid` its process, `state` the letter, `start` clock ticks since boot.

    `switches` is voluntary plus involuntary context switches, `cpu_ticks` user plus system time,
    `user_ticks` the user part of it.
    """

    pid: int
    tgid: int
    comm: str
    state: str
    start: int
    ppid: int = 0
    switches: int | None = None
    cpu_ticks: int = 0
    user_ticks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """What /proc/<pid>/status adds: the process, context switches, whether SIGKILL is pending."""

    tgid: int | None
    switches: int | None
    killed: bool


def task_state(paths: Paths, pid: int, tid: int | None = None) -> Task | None:
    """Read one task; None when it has gone. Never touches a file that can block on the task."""
    task = task_stat(paths, pid, tid)
    if task is None:
        return None
    status = task_status(paths, pid, tid)
    return replace(task, switches=status.switches if status is not None else None)


def task_stat(paths: Paths, pid: int, tid: int | None = None) -> Task | None:
    """Read one task's stat alone, so without `switches`; None when it has gone. `tgid` is `pid` as given."""
    place = f"{paths.proc}/{pid}" if tid is None else f"{paths.proc}/{pid}/task/{tid}"
    return _parse_stat(_read(f"{place}/stat"), pid)


def tasks_in_state(paths: Paths, pid: int, tids: Iterable[int], letters: str) -> Iterator[Task]:
    """Yield those threads of process `pid` whose state is one of `letters`, without their `switches`.

    The cheap way to look at many threads: about 10 µs each, most of it the kernel's.
    """
    try:
        folder = os.open(f"{paths.proc}/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    wanted = letters.encode("ascii")
    try:
        for tid in tids:
            stat = _read(f"{tid}/stat", folder)
            if stat is None:
                continue
            # The name may hold anything; the state follows the last parenthesis.
            letter = stat[stat.rfind(b")") + 2 :][:1]
            if letter and letter in wanted and (task := _parse_stat(stat, pid)) is not None:
                yield task
    finally:
        os.close(folder)


def task_status(paths: Paths, pid: int, tid: int | None = None) -> TaskStatus | None:
    """Read one task's status; None when it has gone."""
    place = f"{paths.proc}/{pid}" if tid is None else f"{paths.proc}/{pid}/task/{tid}"
    text = _read(f"{place}/status")
    if text is None:
        return None
    tgid, switches, killed = None, None, False
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        with suppress(ValueError, IndexError):
            if name in (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches"):
                switches = (switches or 0) + int(value)
            elif name == b"Tgid":
                tgid = int(value)
            elif name in (b"SigPnd", b"ShdPnd"):
                killed = killed or bool(int(value, 16) & _SIGKILL)
    return TaskStatus(tgid=tgid, switches=switches, killed=killed)


def kernel_stack(paths: Paths, pid: int, tid: int | None = None) -> tuple[str, ...]:
    """Return the lines of a task's kernel stack from the top, as `func+0x1/0x2 [module]`.

    Empty where the kernel keeps none, the task has gone, or we are not root.
    """
    place = f"{paths.proc}/{pid}" if tid is None else f"{paths.proc}/{pid}/task/{tid}"
    text = _read(f"{place}/stack") or b""
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    return tuple(re.sub(r"^\[<[0-9a-fx]*>\]\s*", "", line.strip()) for line in lines if line.strip())


def wait_channel(paths: Paths, pid: int, tid: int | None = None) -> str | None:
    """Return the kernel function in which a task waits, or None where the kernel does not tell."""
    place = f"{paths.proc}/{pid}" if tid is None else f"{paths.proc}/{pid}/task/{tid}"
    text = (_read(f"{place}/wchan") or b"").decode("utf-8", "backslashreplace").strip()
    return None if text in ("", "0") else text


def process_ids(paths: Paths) -> list[int]:
    """Return the id of every process; raises OSError when /proc cannot be listed."""
    return [int(name) for name in os.listdir(paths.proc) if name.isdecimal()]  # noqa: PTH208 - cost


def thread_ids(paths: Paths, pid: int) -> list[int]:
    """Return the ids of a process's threads, its leader first; empty when it has gone."""
    try:
        names = os.listdir(f"{paths.proc}/{pid}/task")  # noqa: PTH208 - cost
    except OSError:
        return []
    return sorted((int(name) for name in names if name.isdecimal()), key=lambda tid: (tid != pid, tid))


def holds_device(paths: Paths, pid: int, prefix: str, *, most: int = 512) -> bool:
    """Return whether one of a process's first `most` descriptors is a device whose path starts with `prefix`.

    Not for a task in D state: ask before it hangs.
    """
    return any(path.startswith(prefix) for path in open_files(paths, pid, most=most))


def open_files(paths: Paths, pid: int, *, most: int = 4096) -> Iterator[str]:
    """Yield what a process's first `most` descriptors point to; not for a task in D state."""
    folder = f"{paths.proc}/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - cost
    except OSError:
        return
    for name in names[:most]:
        with suppress(OSError):
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115 - cost


def tasks_in_cgroup(paths: Paths, control_group: str) -> Iterator[Task]:
    """Yield every thread of a cgroup path (as systemd's ControlGroup) and of the groups below it."""
    for pid in processes_in(paths, control_group):
        for tid in thread_ids(paths, pid):
            task = task_state(paths, pid, tid)
            if task is not None:
                yield task


def ticks_per_second() -> int:
    """Return the unit of `Task.start` and `cpu_ticks` (USER_HZ, 100 on every Linux that we know)."""
    return os.sysconf("SC_CLK_TCK")


def _parse_stat(stat: bytes | None, pid: int) -> Task | None:
    if stat is None:
        return None
    head, _, tail = stat.decode("utf-8", "backslashreplace").rpartition(")")
    fields = tail.split()
    number, opened, comm = head.partition(" (")
    if len(fields) < 20 or not opened:
        return None
    try:
        return Task(
            pid=int(number),
            tgid=pid,
            comm=comm,
            state=fields[0],
            ppid=int(fields[1]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            user_ticks=int(fields[11]),
            start=int(fields[19]),
        )
    except ValueError:
        return None


def _read(path: str, folder: int | None = None) -> bytes | None:
    """Return a file of /proc, at most `_MOST` bytes; None when it or its task has gone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except (OSError, ValueError):
        return None
    try:
        return os.read(file, _MOST)
    except OSError:
        return None
    finally:
        os.close(file)
