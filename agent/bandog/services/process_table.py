"""Every process of the host with its control group, and who holds which GPU: read in a worker, looked up on the loop.

A process is often dead by the time its line is read, so the dead are kept for ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from ..domain.gpus import Look
from ..host import boot, cgroups, processes
from ..host.paths import Paths
from . import containers
from .holders import Holders, Holding
from .placement import placement

KEEP_DEAD = timedelta(minutes=10)
WHOLE_HOST_EVERY = timedelta(seconds=60)
"""Groups of managed units and containers are read at each refresh, all others this often."""
MOST_ENTRIES = 65536
BLIND_AFTER = timedelta(seconds=30)
"""Without a refresh for so long, whole lives of processes may have been missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One process as the table knows it; `seen` is when it was last there, since boot."""

    pid: int
    start: int
    group: str
    seen: timedelta
    comm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a refresh leaves behind; replaced whole, so that the loop never sees a half of it.

    Since `since` there has been a refresh every few seconds, the last one at `now`.
    """

    boot_id: str = ""
    since: timedelta = timedelta()
    now: timedelta = timedelta()
    by_pid: Mapping[int, tuple[Known, ...]] = field(default_factory=dict)
    containers: Mapping[str, str] = field(default_factory=dict)  # container id → unit
    holding: Holding = field(default_factory=dict)


class Processes:
    """Makes a new `Table` at each `refresh`, which belongs in a worker, every 5 s."""

    def __init__(self, paths: Paths) -> None:
        self.table = Table()
        self._paths = paths
        self._holders = Holders(paths)
        self._folders: dict[str, str] = {}  # folder of a group → its path as systemd spells it
        self._near: dict[str, str] = {}  # those of managed units and containers
        self._walked: timedelta | None = None
        self._names: dict[str, str | None] = {}  # container id → its name, asked once
        self._clients: dict[tuple[int, int], str | None] = {}  # client process → what it started

    def refresh(self, units: frozenset[str], look: Look | None) -> None:
        """Read who is in which group and holds what; `units` are the managed ones, `look` the newest of the GPUs.

        Raises OSError or ValueError where /proc tells nothing of this boot.
        """
        facts = boot.boot_facts(self._paths)
        whole = self._walked is None or facts.up - self._walked >= WHOLE_HOST_EVERY
        self._walk(units, whole=whole)
        if whole:
            self._walked = facts.up
        ticks = processes.ticks_per_second()
        last = self.table if self.table.boot_id == facts.boot_id else None
        old = {} if last is None else last.by_pid
        table: dict[int, tuple[Known, ...]] = {}
        for folder, group in (self._folders | self._near if whole else self._near).items():
            for pid in cgroups.listed(folder):
                one = self._entry(pid, group, old.get(pid, ()), facts.up, fresh=whole)
                if one is not None and one.start / ticks <= facts.up.total_seconds() + 1:
                    table[pid] = (one,)
        _keep_dead(table, old, facts.up)
        managed = ((one.pid, one.start) for one in _managed(table, units, facts.up))
        holding = self._holders.refresh(look, last.holding if last is not None else {}, managed, facts)
        went_on = last is not None and facts.up - last.now <= BLIND_AFTER
        self.table = Table(
            boot_id=facts.boot_id,
            since=last.since if last is not None and went_on else facts.up,
            now=facts.up,
            by_pid=table,
            containers=self._containers(table, units, facts.up),
            holding=holding,
        )

    def _walk(self, units: frozenset[str], *, whole: bool) -> None:
        """Learn the groups of managed units and containers, and now and then every group of the host."""
        root = next(iter(cgroups.roots(self._paths)), None)
        if root is None:
            return
        self._near = {
            folder: folder.removeprefix(root)
            for top in cgroups.folders_where(root, lambda name: _is_near(name, units))
            for folder in cgroups.folders_below(top)
        }
        if whole:
            self._folders = {folder: folder.removeprefix(root) or "/" for folder in cgroups.folders_below(root)}

    def _entry(self, pid: int, group: str, old: tuple[Known, ...], now: timedelta, *, fresh: bool) -> Known | None:
        last = old[-1] if old else None
        if last is not None and not fresh and last.group == group:
            return replace(last, seen=now)
        task = processes.task_stat(self._paths, pid)
        return None if task is None else Known(pid=pid, start=task.start, group=group, seen=now, comm=task.comm)

    def _containers(
        self, table: Mapping[int, tuple[Known, ...]], units: frozenset[str], now: timedelta
    ) -> dict[str, str]:
        """Return container → unit for the containers that clients in managed units started."""
        started = dict(self._started(table, units, now))
        owners: dict[str, str] = {}
        if not started:
            return owners
        ids = {placement(one.group).container for known in table.values() for one in known}
        for container in ids - {None}:
            assert container is not None
            if container not in self._names:
                self._names[container] = containers.docker_name(self._paths, container)
            unit = started.get(self._names[container] or "") or started.get(container) or started.get(container[:12])
            if unit is not None:
                owners[container] = unit
        self._names = {container: name for container, name in self._names.items() if container in ids}
        return owners

    def _started(
        self, table: Mapping[int, tuple[Known, ...]], units: frozenset[str], now: timedelta
    ) -> Iterator[tuple[str, str]]:
        clients: dict[tuple[int, int], str | None] = {}
        for known in table.values():
            for one in known:
                unit = next((unit for unit in placement(one.group).units if unit in units), None)
                if unit is None:
                    continue
                key = (one.pid, one.start)
                if key in self._clients:
                    clients[key] = self._clients[key]
                elif one.seen == now:
                    clients[key] = self._ask(one.pid)
                started = clients.get(key)
                if started is not None:
                    yield started, unit
        self._clients = clients

    def _ask(self, pid: int) -> str | None:
        task = processes.task_stat(self._paths, pid)
        if task is None or task.state == "D" or task.comm not in containers.CLIENTS:
            return None
        return containers.named(containers.arguments(self._paths, pid))


def _managed(table: Mapping[int, tuple[Known, ...]], units: frozenset[str], now: timedelta) -> Iterator[Known]:
    """Yield the living processes of managed units and of containers."""
    for known in table.values():
        for one in known:
            where = placement(one.group)
            if one.seen == now and (where.container is not None or not units.isdisjoint(where.units)):
                yield one


def _is_near(name: str, units: frozenset[str]) -> bool:
    return cgroups.unescaped(name) in units or placement(name).container is not None


def _keep_dead(table: dict[int, tuple[Known, ...]], old: Mapping[int, tuple[Known, ...]], now: timedelta) -> None:
    """Carry over who was not seen this time: dead, or in a group that is not read at each refresh."""
    for pid, entries in old.items():
        starts = {one.start for one in table.get(pid, ())}
        kept = tuple(one for one in entries if one.start not in starts and now - one.seen <= KEEP_DEAD)
        if kept and len(table) < MOST_ENTRIES:
            table[pid] = kept + table.get(pid, ())
