"""Which services a finding hurts: by the process that it names, else by the GPU: who holds it, else whose it is.

pid → control group → unit or container → service, by the table of `process_table`. A pid is used
again some day; an entry counts for a finding only if its process had begun by then (`start` of
/proc/<pid>/stat, in clock ticks since boot). A program that only looks at GPUs is never blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

from ..domain import subjects
from ..domain.model import Fact, Finding, Instant
from ..host import cgroups, processes
from ..host.paths import Paths
from .holders import KEEP, Cards
from .monitors import OUR_UNIT, is_monitor
from .placement import Placement, placement
from .process_table import BLIND_AFTER, Known, Processes, Table
from .registry import Registry, Service

EARLY = timedelta(seconds=2)
"""How far a record's time may lie before the start of the process that it names: clocks drift."""

# For these the driver names the process whose call it served: often nvidia-smi, never the culprit
# (open-gpu-kernel-modules; GSP RPC time-outs, reset and recovery notices).
MESSENGER_XIDS = frozenset({119, 120, 143, 154})


class Locator:
    """Finds the services that a finding hurts. `registry` may be replaced at a reload; `cards` is the inventory.

    `refresh` belongs in a worker, every 5 s; `locate` and `annotate` are for the loop.
    """

    def __init__(self, paths: Paths, registry: Registry, cards: Cards | None = None) -> None:
        self.registry = registry
        self._paths = paths
        self._cards = cards
        self._processes = Processes(paths)

    def refresh(self) -> None:
        """Read who is in which group; raises OSError or ValueError where /proc tells nothing of this boot."""
        units = frozenset(service.unit for service in self.registry)
        self._processes.refresh(units, self._cards.answered() if self._cards is not None else None)

    @property
    def _table(self) -> Table:
        return self._processes.table

    def locate(self, finding: Finding) -> tuple[str, ...]:
        """Return the names of the services that the finding hurts, the likeliest first; never raises."""
        return self._resolve(finding)[0]

    def annotate(self, finding: Finding) -> Finding:
        """Return the finding with its services, and with fact `unit` where a process told it."""
        services, unit = self._resolve(finding)
        facts: dict[str, Fact] = dict(finding.facts)
        if unit is not None:
            facts.setdefault("unit", unit)
        if services == finding.services and facts == dict(finding.facts):
            return finding
        return replace(finding, services=services, facts=facts)

    def _resolve(self, finding: Finding) -> tuple[tuple[str, ...], str | None]:
        if subjects.type_of(finding.subject) == "service":
            return (finding.services or (subjects.id_of(finding.subject),)), None
        found: list[str] = []
        unit: str | None = None
        placed = False
        stated = finding.facts.get("unit")
        if isinstance(stated, str):
            unit = stated
            _add(found, self.registry.of_unit(stated))
        for pid in self._pids(finding):
            where = self._where(pid, finding)
            # What was never seen among ours, while we looked, is none of ours: a program of seconds.
            placed = placed or where is not None or self._looked(finding.at)
            if where is None or self._only_looks(pid, where, finding):
                continue
            owner = self._table.containers.get(where.container) if where.container is not None else None
            unit = unit or owner or where.unit
            self._add_all(found, where)
        if finding.services:
            return finding.services, unit
        # Where the GPU itself goes on, a fault of somebody else's process hurts none of ours.
        spared = placed and finding.facts.get("usable") == "yes"
        if not found and not spared and subjects.type_of(finding.subject) == "gpu":
            self._add_holders(found, finding)
            if not found:
                for service in self._on_gpu(finding):
                    _add(found, service)
        return tuple(found), unit

    def _add_all(self, found: list[str], where: Placement) -> None:
        """Add the services that a place belongs to: the one that started its container first, then its units'."""
        owner = self._table.containers.get(where.container) if where.container is not None else None
        for name in (owner, *where.units):
            _add(found, self.registry.of_unit(name) if name is not None else None)

    def _add_holders(self, found: list[str], finding: Finding) -> None:
        """Add the services whose processes held the GPU about when the finding was made."""
        for pid, seen in self._table.holding.get(subjects.id_of(finding.subject), {}).items():
            where = self._where(pid, finding)
            near = abs(finding.at.boottime - seen) <= 2 * KEEP
            if near and where is not None and not self._only_looks(pid, where, finding):
                self._add_all(found, where)

    def _only_looks(self, pid: int, where: Placement, finding: Finding) -> bool:
        """True for a program that computes nothing on a GPU, our own too."""
        known = _begun(self._table.by_pid.get(pid, ()), finding.at.boottime)
        named = finding.facts.get("process") if pid == finding.facts.get("pid") else None
        names = (known.comm if known is not None else "", named if isinstance(named, str) else "")
        return where.unit == OUR_UNIT or any(is_monitor(name) for name in names)

    def holding(self, address: str) -> tuple[str, ...]:
        """Return the services whose processes hold the GPU at an address now, for `bandog status`."""
        found: list[str] = []
        for pid in self._table.holding.get(address, {}):
            known = self._table.by_pid.get(pid)
            if known is not None and known[-1].seen == self._table.now and not is_monitor(known[-1].comm):
                self._add_all(found, placement(known[-1].group))
        return tuple(found)

    def _looked(self, at: Instant) -> bool:
        """True when a managed process that died at `at` must be in the table, unless it lived for a moment only."""
        table = self._table
        return table.boot_id == at.boot_id and table.since + EARLY <= at.boottime <= table.now + BLIND_AFTER

    def _on_gpu(self, finding: Finding) -> Iterator[Service]:
        yield from self.assigned(subjects.id_of(finding.subject))
        uuid = finding.facts.get("uuid")
        if isinstance(uuid, str):
            yield from self.registry.of_uuid(uuid)

    def assigned(self, address: str) -> Iterator[Service]:
        """Yield the services whose `gpus:` hold the GPU at an address: those that name it or its card's UUID first."""
        card = self._cards.at(address) if self._cards is not None else None
        named = (*self.registry.on_gpu(address), *(self.registry.of_uuid(card.uuid) if card is not None else ()))
        yield from sorted(named, key=lambda one: one.gpus == "all")

    @staticmethod
    def _pids(finding: Finding) -> Iterator[int]:
        """The processes that the finding speaks of: the holder of a lock before who waits for it."""
        if finding.kind == "nvidia.xid" and finding.facts.get("xid") in MESSENGER_XIDS:
            return
        if finding.facts.get("glued"):
            return
        for names in (("holder_tgid", "holder_pid"), ("tgid", "pid")):
            for name in names:
                value = finding.facts.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    yield value
                    break

    def _where(self, pid: int, finding: Finding) -> Placement | None:
        table = self._table
        if table.boot_id and finding.at.boot_id != table.boot_id:
            return None
        known = _begun(table.by_pid.get(pid, ()), finding.at.boottime)
        if known is not None:
            return placement(known.group)
        task = processes.task_stat(self._paths, pid)
        if task is None or not _by(task.start, finding.at.boottime):
            return None
        # The log names threads; the table knows processes. The kernel answers for either.
        group = cgroups.control_group(self._paths, pid)
        return None if group is None else placement(group)


def _add(found: list[str], service: Service | None) -> None:
    if service is not None and service.name not in found:
        found.append(service.name)


def _by(start: int, at: timedelta) -> bool:
    """Return whether a process that began at `start` (ticks) can be meant by a record of time `at`."""
    return timedelta(seconds=start / processes.ticks_per_second()) <= at + EARLY


def _begun(known: Iterable[Known], at: timedelta) -> Known | None:
    """Return the latest process of one pid that had begun by `at`."""
    return max((one for one in known if _by(one.start, at)), key=lambda one: one.start, default=None)
