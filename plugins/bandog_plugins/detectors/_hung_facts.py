"""What is stated of a hung task, the same for the kernel's report and for our own scan."""

from __future__ import annotations

from datetime import timedelta

from bandog import Facts, Severity

from . import _hung_stack as stack

EPISODE = timedelta(minutes=10)
"""khungtaskd repeats a report every two minutes while a task hangs: this long they are one event."""
LONG_COREDUMP = 600
"""Seconds after which even a core dump of a huge process is worth a warning."""
MOST_FRAMES = 16
REPORTS = "hung-task reports"

HUNG: Facts = {
    "pid": int,
    "comm": str,
    "seconds": int,
    "tgid": int,
    "ppid": int,
    "thread_of": int,
    "comm_truncated": bool,
    "kernel_thread": bool,
    "state": str,
    "class": str,
    "where": str,
    "stack": tuple,
    "modules_in_stack": tuple,
    "holder": str,
    "holder_pid": int,
    "holder_tgid": int,
    "holder_role": str,
    "holder_state": str,
    "holder_where": str,
    "blocker_type": str,
    "blocked_as": str,
    "iowait": bool,
    "coredump": bool,
    "workqueue": str,
    "work_func": str,
    "work_desc": str,
    "tainted": str,
    "release": str,
    "flags": str,
    "task_flags": str,
    "episode": int,
    "by": str,
    "unit": str,
    "threads": int,
    "holds_gpu": bool,
    "killed": bool,
    "glued": bool,
    "text": str,
}
BLIND: Facts = {"what": str, "text": str}


def severity(word: str, seconds: int, *, managed: bool = False) -> Severity:
    """Return how bad a hang is: worse in the driver or in a service of ours, none yet in a core dump."""
    if word == stack.COREDUMP:
        return Severity.WARNING if seconds >= LONG_COREDUMP else Severity.INFO
    return Severity.ERROR if managed or word == stack.DRIVER else Severity.WARNING
