"""Which processes on a GPU are a unit's own, and how somebody else's is named."""

from __future__ import annotations

from collections.abc import Iterable

from bandog import GpuLook, Site, SystemdError, UnitProcesses, UnitState, is_monitor, processes, whose

from ._pid1 import Pid1


class Owner:
    """A unit as the owner of processes, at this moment. For a worker."""

    def __init__(self, site: Site, pid1: Pid1, unit: UnitState) -> None:
        self._site = site
        self._pid1 = pid1
        self._unit = unit
        self._processes = UnitProcesses(site.paths, unit.name, unit.control_group)
        self._known: dict[int, bool] = {}

    @property
    def pids(self) -> frozenset[int]:
        """The processes of the unit's control group, without those of its containers."""
        return self._processes.pids

    def owns(self, pid: int) -> bool:
        """Return whether a process is the unit's: as its control group says, else PID 1."""
        if pid not in self._known:
            self._known[pid] = self._processes.owns(pid) or self._told(pid)
        return self._known[pid]

    def _told(self, pid: int) -> bool:
        try:
            return self._pid1.unit_of_pid(pid) == self._unit.name
        except SystemdError:
            return False


def strangers(site: Site, gpu: GpuLook, owners: Iterable[Owner]) -> tuple[str, ...]:
    """Return, for people, who else holds memory of a GPU; programs that only look at it do not count."""
    mine = tuple(owners)
    found = []
    for holder in gpu.holders or ():
        task = processes.task_stat(site.paths, holder.pid)
        if task is None or is_monitor(task.comm) or any(one.owns(holder.pid) for one in mine):
            continue
        memory = f", {holder.memory >> 20} MiB" if holder.memory else ""
        found.append(f"{whose(site.paths, holder.pid)}{memory}")
    return tuple(found)
