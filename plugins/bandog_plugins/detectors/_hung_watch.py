"""Whom the scan looks at: processes of our services, holders of a GPU, and from time to time everyone.

Looking at a thread costs about 10 µs, and a server with eight GPUs has thousands of them. So each
round looks at every leader and, of the other threads, at a share that goes round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

from bandog import Instant, Site, Task, cgroups, processes

SHARE = 1000
"""Threads beside the leaders that one round looks at: about 10 ms in 10 s."""
ROUNDS = 12
"""In so many rounds, two minutes, the share must have gone round, else those in scope get the look at all too."""
LISTED_FOR = timedelta(seconds=30)
"""How long a process's list of threads, and a unit's folder, is taken as it was."""
DEVICE = "nvidia"
FIRST_RECHECK = timedelta(seconds=10)
LAST_RECHECK = timedelta(minutes=10)
KTHREADD = 2


@dataclass(slots=True)
class _Listed:
    at: Instant
    tids: list[int]


@dataclass(slots=True)
class _Asked:
    """What a process was when it was asked whether it holds a GPU, and when to ask again."""

    start: int
    due: Instant
    pause: timedelta


class Watch:
    """The processes in scope between two rounds."""

    def __init__(self) -> None:
        self.units: dict[int, str] = {}
        self.holders: set[int] = set()
        self._folders: dict[str, str] = {}
        self._searched: Instant | None = None
        self._listed: dict[int, _Listed] = {}
        self._asked: dict[int, _Asked] = {}
        self._turn = 0
        self._goes_round = False

    def look(self, site: Site, now: Instant) -> Iterator[Task]:
        """Yield the threads in scope that run or wait in D: every leader, and this round's share of the rest."""
        self._find_managed(site, now)
        if self._has_gpus(site):
            self._find_holders(site, now)
        else:
            self.holders.clear()
        scope = sorted(self.holders.union(self.units))
        self._listed = {pid: one for pid, one in self._listed.items() if pid in self.units or pid in self.holders}
        others = [(pid, tid) for pid in scope for tid in self._threads(site, pid, now) if tid != pid]
        self._goes_round = len(others) <= SHARE * ROUNDS
        share = set(self._next(others))
        for pid in scope:
            tids = [pid, *(tid for tid in self._listed[pid].tids if (pid, tid) in share)]
            yield from processes.tasks_in_state(site.paths, pid, tids, "DR")

    def look_everywhere(self, site: Site, *, first: bool) -> Iterator[Task]:
        """Yield every thread of the host that waits in D; raises OSError when /proc cannot be listed.

        But for the `first` time without those in scope: `look` comes by all of them often enough.
        """
        known = set() if first or not self._goes_round else self.holders.union(self.units)
        for pid in processes.process_ids(site.paths):
            if pid in known:
                continue
            yield from processes.tasks_in_state(site.paths, pid, processes.thread_ids(site.paths, pid), "D")

    def _next(self, others: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if len(others) <= SHARE:
            return others
        begin = self._turn % len(others)
        self._turn = begin + SHARE
        return (others + others)[begin : begin + SHARE]

    def _threads(self, site: Site, pid: int, now: Instant) -> list[int]:
        known = self._listed.get(pid)
        if known is None or now.since(known.at) >= LISTED_FOR:
            known = self._listed[pid] = _Listed(now, processes.thread_ids(site.paths, pid))
        return known.tids

    def _find_managed(self, site: Site, now: Instant) -> None:
        units = {site.services.get(name).unit for name in site.services.names()}
        known = set(self._folders) == units
        if self._searched is None or not known or now.since(self._searched) >= LISTED_FOR:
            self._folders = cgroups.folders_of_units(site.paths, units)
            self._searched = now
        self.units = {
            pid: unit
            for unit, top in self._folders.items()
            for folder in cgroups.folders_below(top)
            for pid in cgroups.listed(folder)
        }

    @staticmethod
    def _has_gpus(site: Site) -> bool:
        try:
            return any(entry.name.startswith(DEVICE) for entry in site.paths.dev.iterdir())
        except OSError:
            return False

    def _find_holders(self, site: Site, now: Instant) -> None:
        """Ask new processes soon and old ones rarely; never one that waits in D (it may not answer)."""
        alive = processes.process_ids(site.paths)
        self.holders.intersection_update(alive)
        self._asked = {pid: self._asked[pid] for pid in alive if pid in self._asked}
        prefix = str(site.paths.dev / DEVICE)
        for pid in alive:
            asked = self._asked.get(pid)
            if asked is not None and now.since(asked.due) < timedelta(0):
                continue
            task = next(processes.tasks_in_state(site.paths, pid, (pid,), "RSTtXZID"), None)
            if task is None or task.state == "D":
                continue
            pause = FIRST_RECHECK
            if asked is not None and asked.start == task.start:
                pause = min(asked.pause * 2, LAST_RECHECK)
            if kernel_thread(task):
                pause = LAST_RECHECK
            elif processes.holds_device(site.paths, pid, prefix):
                self.holders.add(pid)
                pause = LAST_RECHECK
            else:
                self.holders.discard(pid)
            self._asked[pid] = _Asked(task.start, now.plus(pause), pause)


def kernel_thread(task: Task) -> bool:
    """Return whether a task is one of the kernel's own."""
    return KTHREADD in (task.ppid, task.tgid)


def read_again(site: Site, tasks: Iterable[tuple[int, int]]) -> Iterator[Task]:
    """Yield those of (process, thread) that still run or wait in D."""
    for pid, group in groupby(sorted(tasks), key=lambda one: one[0]):
        yield from processes.tasks_in_state(site.paths, pid, [tid for _, tid in group], "DR")
