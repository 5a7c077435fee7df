"""Our own look for tasks that hang, which sees what khungtaskd never reports.

A task hangs when the same task (thread id and start time) was in D at each of several looks, without
a context switch or a tick of CPU time between them. The kernel's report leaves out killable waits
(NFS, FUSE, many page locks) and falls silent after ten reports; this does neither. A task that has
been killed and still spins inside the GPU driver hangs as well, although it is in R.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from bandog import (
    Duration,
    Fact,
    Facts,
    Finding,
    Host,
    Instant,
    Options,
    Probe,
    Severity,
    Site,
    Task,
    Unknown,
    processes,
    subjects,
)

from . import _hung_facts as facts
from . import _hung_stack as stack
from ._hung_watch import Watch, kernel_thread, read_again

SAMPLES = 3
"""Looks at which a task must have stood still before it counts, however long ago the first was."""
MAX_FINDINGS = 64
MAX_SUSPECTS = 4096


class ScanOptions(Options):
    """How long a task must stand still: in a service of ours or with a GPU open, and anywhere else."""

    managed: Duration = timedelta(seconds=30)
    host: Duration = timedelta(seconds=120)
    host_every: Duration = timedelta(minutes=2)


@dataclass(slots=True, kw_only=True)
class Suspect:
    """A task that stands still since `first`; `stack` and `wchan` are read once it counts."""

    task: Task
    first: Instant
    samples: int = 1
    switches: int | None = None
    killed: bool = False
    frames: tuple[stack.Frame, ...] = ()
    wchan: str | None = None

    @property
    def subject(self) -> str:
        """What a finding on it is about."""
        return subjects.task(self.task.comm)


Key = tuple[int, int]  # thread id, start time: a thread id alone is used again
Aspect = tuple[str, int]  # subject, thread id: what a clearing answers to


class HungTaskScan(Probe):
    """Watches tasks of managed units and GPU holders every 10 s, the whole host every 2 min."""

    name = "hung-task-scan"
    Options = ScanOptions
    emits: ClassVar[Mapping[str, Facts]] = {"task.hung": facts.HUNG, "agent.log-blind": facts.BLIND}
    every = timedelta(seconds=10)
    deadline = timedelta(seconds=8)
    options: ScanOptions

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        self._watch = Watch()
        self._suspects: dict[Key, Suspect] = {}
        self._raised: set[Aspect] = set()
        self._polls = 0
        self._host_round: Instant | None = None
        self._blind = ""

    def unsupported(self, host: Host) -> str | None:
        """Return why nothing can be seen: /proc is not there."""
        return None if host.paths.proc.is_dir() else f"{host.paths.proc} is not there"

    def poll(self, site: Site) -> Iterable[Finding | Unknown]:
        """Look once; returns what hangs, what may yet turn out to hang, and what moves again."""
        now = site.clock.now()
        try:
            seen = self._look(site, now)
        except OSError as error:
            return [Unknown(kind="task.hung", why=f"/proc cannot be read: {error}")]
        self._polls += 1
        before, told = self._suspects, self._raised
        self._suspects = self._follow(site, seen, now)
        return [*self._state(site, now), *self._moving(before, told, now), *self._blindness(now)]

    def _look(self, site: Site, now: Instant) -> dict[Key, Task]:
        seen = {(task.pid, task.start): task for task in self._watch.look(site, now)}
        if self._host_round is None or now.since(self._host_round) >= self.options.host_every:
            first, self._host_round = self._host_round is None, now
            self._blind = _blind(site)
            seen |= {(task.pid, task.start): task for task in self._watch.look_everywhere(site, first=first)}
        missing = [(one.task.tgid, one.task.pid) for key, one in self._suspects.items() if key not in seen]
        return seen | {(task.pid, task.start): task for task in read_again(site, missing)}

    def _follow(self, site: Site, seen: Mapping[Key, Task], now: Instant) -> dict[Key, Suspect]:
        """Return who stands still now: known ones go on if nothing of them moved, new ones begin."""
        still: dict[Key, Suspect] = {}
        for key, task in seen.items():
            if len(still) >= MAX_SUSPECTS:
                break
            judge = self._spinning if task.state == "R" else self._waiting
            one = judge(site, task, self._suspects.get(key), now)
            if one is not None:
                still[key] = one
        return still

    def _waiting(self, site: Site, task: Task, old: Suspect | None, now: Instant) -> Suspect | None:
        status = processes.task_status(site.paths, task.tgid, task.pid)
        if status is None:
            return None
        if (
            old is None
            or old.task.state != "D"
            or old.switches != status.switches
            or old.task.cpu_ticks != task.cpu_ticks
        ):
            return Suspect(task=task, first=now, switches=status.switches, killed=status.killed)
        old.samples += 1
        old.killed = status.killed
        return old

    def _spinning(self, site: Site, task: Task, old: Suspect | None, now: Instant) -> Suspect | None:
        """A killed task that runs on without ever reaching user space is stuck in the kernel."""
        if old is None or old.task.state != "R" or old.task.user_ticks != task.user_ticks:
            return Suspect(task=task, first=now)
        status = processes.task_status(site.paths, task.tgid, task.pid)
        if status is None or not status.killed:
            return Suspect(task=task, first=now)
        old.samples += 1
        old.killed = True
        return old

    def _state(self, site: Site, now: Instant) -> Iterator[Finding | Unknown]:
        """State what hangs, one finding for a process and name; what stands still for less is unknown yet."""
        groups: dict[tuple[int, str], list[Suspect]] = {}
        young: set[str] = set()
        for one in sorted(self._suspects.values(), key=lambda one: (one.first.boottime, one.task.pid)):
            if self._counts(site, one, now):
                groups.setdefault((one.task.tgid, one.task.comm), []).append(one)
            elif one.task.state == "D" and (one.samples >= 2 or self._polls <= SAMPLES):
                # After a start of ours, whatever waits may have been reported before it.
                young.add(one.subject)
        ranked = sorted(groups.values(), key=lambda group: group[0].task.tgid not in self._watch.units)
        self._raised = {(group[0].subject, group[0].task.pid) for group in ranked[:MAX_FINDINGS]}
        for group in ranked[:MAX_FINDINGS]:
            yield self._finding(group[0], len(group), now)
        for subject in sorted(young):
            yield Unknown(kind="task.hung", subject=subject, why="stands still, but not yet for long enough")

    def _counts(self, site: Site, one: Suspect, now: Instant) -> bool:
        patience = self.options.managed if self._ours(one) else self.options.host
        if one.samples < SAMPLES or now.since(one.first) < patience:
            return False
        if not one.frames:
            lines = processes.kernel_stack(site.paths, one.task.tgid, one.task.pid)
            one.frames = tuple(found for line in lines if (found := stack.frame(line)) is not None)
            one.wchan = processes.wait_channel(site.paths, one.task.tgid, one.task.pid)
        if one.task.state == "R":
            # A running task's stack cannot always be read; then an open GPU is the witness.
            return stack.in_driver(one.frames) or (not one.frames and one.task.tgid in self._watch.holders)
        return not kernel_thread(one.task) or _works(one.frames)

    def _ours(self, one: Suspect) -> bool:
        return one.task.tgid in self._watch.units or one.task.tgid in self._watch.holders

    def _finding(self, one: Suspect, threads: int, now: Instant) -> Finding:
        task, unit = one.task, self._watch.units.get(one.task.tgid)
        frames = one.frames or ((stack.Frame(one.wchan),) if one.wchan else ())
        word = stack.DRIVER if task.state == "R" else stack.classify(frames)
        seconds = int(now.since(one.first).total_seconds())
        known: dict[str, Fact | None] = {
            "pid": task.pid,
            "comm": task.comm,
            "seconds": seconds,
            "tgid": task.tgid,
            "ppid": task.ppid,
            "thread_of": task.tgid if task.tgid != task.pid else None,
            "kernel_thread": kernel_thread(task),
            "state": task.state,
            "class": word,
            "where": stack.where(frames),
            "stack": tuple(str(frame) for frame in one.frames if frame.sure)[: facts.MOST_FRAMES] or None,
            "modules_in_stack": stack.modules(frames) or None,
            "unit": unit,
            "holds_gpu": task.tgid in self._watch.holders or None,
            "killed": one.killed or None,
            "threads": threads,
            "by": "scan",
        }
        return Finding(
            kind="task.hung",
            subject=one.subject,
            severity=facts.severity(word, seconds, managed=unit is not None),
            at=now,
            detector=self.name,
            facts={name: value for name, value in known.items() if value is not None},
            live=True,
            burst=str(task.pid),
            aspect=str(task.pid),
            window=facts.EPISODE,
        )

    def _moving(self, before: Mapping[Key, Suspect], told: set[Aspect], now: Instant) -> Iterator[Finding]:
        """Say of a task that stood still for a while that it moves again or has gone.

        It may be khungtaskd that reported it, and the kernel never says that a task has recovered.
        What khungtaskd reports after its 120 s has been seen here before: ours at several looks, any
        other at the last look at the whole host. What this probe itself reported (`told`) clears by
        being left out.
        """
        for key, one in before.items():
            still = self._suspects.get(key) is one or (one.subject, one.task.pid) in told
            if still or one.task.state != "D" or (one.samples < 2 and self._ours(one)):
                continue
            yield Finding(
                kind="task.hung",
                subject=one.subject,
                severity=Severity.INFO,
                at=now,
                detector=self.name,
                raised=False,
                facts={"pid": one.task.pid, "comm": one.task.comm, "tgid": one.task.tgid, "by": "scan"},
                live=True,
                burst=str(one.task.pid),
                aspect=str(one.task.pid),
            )

    def _blindness(self, now: Instant) -> Iterator[Finding]:
        if self._blind:
            yield Finding(
                kind="agent.log-blind",
                subject=subjects.AGENT,
                severity=Severity.WARNING,
                at=now,
                detector=self.name,
                facts={"what": facts.REPORTS, "text": self._blind},
                live=True,
                burst="hung-task",
                aspect="hung-task",
            )


def _works(frames: Iterable[stack.Frame]) -> bool:
    """Return whether a kernel thread is at work: some idle in D for ever, and that is no fault."""
    found = list(frames)
    if any(one.func == "process_one_work" for one in found):
        return True
    return stack.classify(found) not in (stack.OTHER, stack.DRIVER)


def _blind(site: Site) -> str:
    """Return why khungtaskd says nothing (any more), or "" where it may speak or is not there."""
    try:
        left = (site.paths.proc / "sys/kernel/hung_task_warnings").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return "kernel.hung_task_warnings is 0: the kernel reports no hung task any more" if left == "0" else ""
