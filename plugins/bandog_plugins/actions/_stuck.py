"""Tasks of a unit that no signal reaches: in D state over two samples, without any progress between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from bandog import Site, Task, tasks_in_cgroup

SAMPLE_GAP = timedelta(seconds=1)
Sample = Mapping[tuple[int, int], Task]
"""Tasks in D state by (pid, start time): a reused pid is another task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckTask:
    """One task that cannot be killed; `wchan` is the kernel function that it sleeps in."""

    pid: int
    comm: str
    wchan: str

    def __str__(self) -> str:
        where = f" in {self.wchan}" if self.wchan else ""
        return f"{self.comm} pid {self.pid}{where}"


def sample(site: Site, control_group: str) -> Sample:
    """Return the tasks of the cgroup that are in D state now."""
    tasks = tasks_in_cgroup(site.paths, control_group)
    return {(task.pid, task.start): task for task in tasks if task.state == "D"}


def unmoved(site: Site, before: Sample, after: Sample) -> tuple[StuckTask, ...]:
    """Return what stands in both samples with the same switch counters and processor time."""
    return tuple(
        StuckTask(pid=task.pid, comm=task.comm, wchan=_wchan(site, task))
        for key, task in after.items()
        if key in before and before[key].switches == task.switches and before[key].cpu_ticks == task.cpu_ticks
    )


def stuck_tasks(site: Site, control_group: str) -> tuple[StuckTask, ...]:
    """Sample twice, `SAMPLE_GAP` apart (once if nothing is in D state); for a worker thread."""
    before = sample(site, control_group)
    if not before:
        return ()
    site.wait(site.clock.sleep(SAMPLE_GAP), deadline=SAMPLE_GAP + timedelta(seconds=10))
    return unmoved(site, before, sample(site, control_group))


def words(stuck: tuple[StuckTask, ...]) -> str:
    """Return `unkillable: …` for people; the first three by name."""
    named = ", ".join(str(one) for one in stuck[:3])
    more = f" and {len(stuck) - 3} more" if len(stuck) > 3 else ""
    return f"unkillable: {named}{more}"


def _wchan(site: Site, task: Task) -> str:
    place = site.paths.proc / str(task.tgid) / "task" / str(task.pid) / "wchan"
    try:
        name = place.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
    return "" if name == "0" else name


def pids(site: Site, control_group: str) -> frozenset[int]:
    """Return the ids of all tasks in the cgroup."""
    return frozenset(task.pid for task in tasks_in_cgroup(site.paths, control_group) if task.state != "Z")
