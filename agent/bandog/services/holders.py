"""Which processes hold which GPU: as the driver told in the newest look, else by their open device files.

The device files are read for processes of managed units and containers only, never for a task in D state, and
only where the driver does not tell. Which `/dev/nvidia<minor>` is which card, the last look of this boot knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from ..domain.gpus import GpuLook, KnownGpu, Look
from ..host import processes
from ..host.boot import BootFacts
from ..host.paths import Paths

KEEP = timedelta(seconds=60)
"""A process that was seen holding a GPU is taken for its holder so long: it may have died of the fault."""
READ_AGAIN = timedelta(seconds=30)
_DEVICE = re.compile(r"/dev/nvidia(\d+)\Z")

Holding = Mapping[str, Mapping[int, timedelta]]
"""Address → process → when it was last seen holding, since boot."""


class Cards(Protocol):
    """The part of the inventory that tells where cards are and who holds them."""

    def answered(self) -> Look | None:
        """Return the newest look in which the driver answered."""

    def at(self, address: str) -> KnownGpu | None:
        """Return the card in a slot."""


class Holders:
    """Keeps who holds what; `refresh` belongs in a worker."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._files: dict[tuple[int, int], tuple[timedelta, frozenset[int]]] = {}  # process → when read, minors

    def refresh(self, look: Look | None, old: Holding, managed: Iterable[tuple[int, int]], facts: BootFacts) -> Holding:
        """Return who holds what now; `managed` are (pid, start) of the processes of ours."""
        if look is None or look.at.boot_id != facts.boot_id:
            return {}
        told = facts.up - look.at.boottime <= KEEP
        untold = [gpu for gpu in look.gpus if gpu.holders is None or not told]
        now: dict[str, dict[int, timedelta]] = {gpu.address: _recent(old, gpu.address, facts.up) for gpu in look.gpus}
        for gpu in look.gpus:
            if gpu.holders is not None and told:
                now[gpu.address].update((one.pid, look.at.boottime) for one in gpu.holders)
        if untold:
            self._by_files(untold, now, managed, facts.up)
        else:
            self._files.clear()
        return now

    def _by_files(
        self,
        gpus: Iterable[GpuLook],
        now: dict[str, dict[int, timedelta]],
        managed: Iterable[tuple[int, int]],
        up: timedelta,
    ) -> None:
        addresses = {gpu.minor: gpu.address for gpu in gpus if gpu.minor is not None}
        if not addresses:
            return
        kept: dict[tuple[int, int], tuple[timedelta, frozenset[int]]] = {}
        for pid, start in managed:
            last = self._files.get((pid, start))
            if last is None or up - last[0] >= READ_AGAIN:
                last = (up, _minors(self._paths, pid))
            kept[(pid, start)] = last
            for minor in last[1] & addresses.keys():
                now[addresses[minor]][pid] = last[0]
        self._files = kept


def _recent(old: Holding, address: str, up: timedelta) -> dict[int, timedelta]:
    return {pid: seen for pid, seen in old.get(address, {}).items() if up - seen <= KEEP}


def _minors(paths: Paths, pid: int) -> frozenset[int]:
    task = processes.task_stat(paths, pid)
    if task is None or task.state == "D":
        return frozenset()
    matches = (_DEVICE.match(path) for path in processes.open_files(paths, pid))
    return frozenset(int(match[1]) for match in matches if match is not None)
