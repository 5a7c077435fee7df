"""What a start asks of the living host; implements `start_one.Means`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ..domain.gpus import Look
from ..host import cgroups, processes
from ..host.site import Clock, Readiness, Site
from ..host.systemd_types import Systemd, SystemdError, UnitState
from . import overrides, start_memory
from .belongings import UnitProcesses, whose
from .monitors import is_monitor
from .overrides import Override
from .profiles import Refusal
from .registry import Registry, Service
from .start_one import Signs

_JOURNAL = timedelta(seconds=10)


class HostMeans:
    """Asks the host through a site; `look` makes a fresh look at the GPUs, which the site's inventory then has."""

    def __init__(self, site: Site, registry: Registry, look: Callable[[], None]) -> None:
        self._site = site
        self._registry = registry
        self._look = look
        self._looking = asyncio.Lock()

    @property
    def systemd(self) -> Systemd:
        """PID 1."""
        return self._site.systemd

    @property
    def clock(self) -> Clock:
        """The clocks."""
        return self._site.clock

    async def ready(self, name: str) -> Readiness:
        """Ask a service whether it is ready."""
        return await asyncio.to_thread(self._site.services.ready, name)

    async def serves(self, name: str) -> Readiness:
        """Ask whether it is ready, and for one completion."""
        return await asyncio.to_thread(self._site.services.serves, name)

    async def look(self) -> Look | None:
        """Look once; services that start side by side share a look."""
        async with self._looking:
            await asyncio.to_thread(self._look)
        return self._site.gpus.look()

    async def holders(self, service: Service, look: Look | None) -> tuple[str, ...]:
        """Return who else holds memory there: no process of a service of ours, nor one that only looks."""
        cards = start_memory.cards_of(service, look, self.put(service))
        if not any(card.holders for card in cards):
            return ()
        units, mine = [], set[int]()
        with suppress(SystemdError):
            units = [await self.systemd.unit(one.unit) for one in self._registry]
            names = {one.name for one in units}
            for pid in {one.pid for card in cards for one in card.holders or ()}:
                if await self.systemd.unit_of_pid(pid) in names:
                    mine.add(pid)

        def named() -> tuple[str, ...]:
            paths = self._site.paths
            ours = [UnitProcesses(paths, unit.name, unit.control_group) for unit in units]

            def stranger(pid: int) -> str | None:
                task = processes.task_stat(paths, pid)
                if task is None or pid in mine or is_monitor(task.comm) or any(one.owns(pid) for one in ours):
                    return None
                return whose(paths, pid)

            return start_memory.holders(cards, stranger)

        return await asyncio.to_thread(named)

    def missing(self, service: Service, look: Look | None) -> tuple[str, ...]:
        """Return the service's cards that the inventory expects and the look does not show."""
        return start_memory.missing(service, look, self._site.gpus.known())

    async def prepare(self, service: Service, unit: UnitState, look: Look | None) -> Override | Refusal | str | None:
        """Leave a card out that is out, where the unit reads bandog's file and the driver has answered."""
        if str(overrides.path_of(self._site.paths.run, service.unit)) not in unit.environment_files:
            return None
        if look is None or look.error or look.hung:
            return None
        try:
            return overrides.reapply(
                service,
                look=look,
                usable=self._site.gpus.usable(),
                known=self._site.gpus.known(),
                run=self._site.paths.run,
                at=self.clock.now(),
            )
        except (OSError, ValueError) as error:
            return f"its environment could not be written: {error}"

    def put(self, service: Service) -> tuple[str, ...]:
        """Return the GPUs that an override in force gives the service."""
        standing = overrides.in_force(self._site.paths.run, service.unit)
        return standing.gpus if standing is not None else ()

    async def signs(self, service: Service, unit: UnitState, look: Look | None) -> Signs:
        """Return the newest entry of the unit's log, what its group has read, and what its GPUs hold."""
        cards = start_memory.cards_of(service, look, self.put(service))
        memory = start_memory.used(cards)
        log, read = await asyncio.to_thread(lambda: (self._entry(unit.name), self._read(unit.control_group)))
        return Signs(log=log, read=read, memory=sum(memory.values()) if memory else None)

    def _entry(self, unit: str) -> str:
        command = ["journalctl", "--quiet", "--no-pager", "--boot", "--lines=1", "--output=json"]
        fields = ["--output-fields=_PID", f"_SYSTEMD_UNIT={unit}"]
        outcome = self._site.child([*command, *fields], deadline=_JOURNAL, limit=1 << 16)
        try:
            return str(json.loads(outcome.out)["__CURSOR"]) if outcome.ok else ""
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    def _read(self, group: str) -> int | None:
        """Return the bytes that a group has read from disks (Documentation/admin-guide/cgroup-v2.rst, io.stat)."""
        for root in cgroups.roots(self._site.paths):
            try:
                text = (Path(root) / group.strip("/") / "io.stat").read_text("ascii")
            except (OSError, UnicodeDecodeError):
                continue
            words = [word.removeprefix("rbytes=") for word in text.split() if word.startswith("rbytes=")]
            return sum(int(word) for word in words if word.isdecimal())
        return None
