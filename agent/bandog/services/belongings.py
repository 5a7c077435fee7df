"""Whose a process is: of a unit, or of the container that a unit has started. For a look at the moment, in a worker.

`process_table` answers the same for processes that have died; this needs no table, and so no daemon.
"""

from __future__ import annotations

from ..host import cgroups, processes
from ..host.paths import Paths
from . import containers
from .placement import Placement, placement


class UnitProcesses:
    """The processes of one unit as they are now: of its control group, and of the containers that it has started."""

    def __init__(self, paths: Paths, unit: str, control_group: str) -> None:
        self._paths = paths
        self._unit = unit
        self.pids = frozenset(cgroups.processes_in(paths, control_group))
        self._started = frozenset(name for pid in self.pids if (name := _started(paths, pid)))

    def owns(self, pid: int) -> bool:
        """Return whether a process is the unit's; False for one that has gone."""
        if pid in self.pids:
            return True
        where = _where(self._paths, pid)
        if where is None:
            return False
        if self._unit in where.units:
            return True
        container = where.container
        if container is None or not self._started:
            return False
        return bool(
            self._started & {container, container[:12], containers.docker_name(self._paths, container) or container}
        )


def whose(paths: Paths, pid: int) -> str:
    """Return who a process is, for people: its name, pid, unit and container as far as they can be known."""
    task = processes.task_stat(paths, pid)
    if task is None:
        return f"pid {pid}"
    where = _where(paths, pid) or Placement()
    container = where.container
    name = (containers.docker_name(paths, container) or container[:12]) if container is not None else None
    parts = [f"pid {pid}", where.unit, f"container {name}" if name else None]
    comm = "".join(one if one.isprintable() else "?" for one in task.comm)
    return f"{comm} ({', '.join(part for part in parts if part)})"


def _where(paths: Paths, pid: int) -> Placement | None:
    group = cgroups.control_group(paths, pid)
    return placement(group) if group is not None else None


def _started(paths: Paths, pid: int) -> str | None:
    """Return the container that a client process runs, by name or id. A task in D state is not asked."""
    task = processes.task_stat(paths, pid)
    if task is None or task.state == "D" or task.comm not in containers.CLIENTS:
        return None
    return containers.named(containers.arguments(paths, pid))
