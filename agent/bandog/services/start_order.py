"""`services start`: one service after the other, each gated on what it serves, its memory and a settle time.

Two models that load at once race for GPU memory and page cache, and `active` does not mean ready: a simple unit is
active as soon as it is forked. So the next unit is started only after the one before has passed its gate, or has
failed it; one that fails keeps nobody else down.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..domain.model import EMPTY
from .registry import Registry, Service


class Progress(enum.Enum):
    """How one service of a start stands."""

    PLANNED = "planned"
    ALREADY = "already"  # active and serving before we came
    WAITING = "waiting"  # for memory that another holds, or for a card that is not there yet
    STARTING = "starting"
    SLOW = "slow"  # past its time, and given more because it makes progress
    READY = "ready"  # has answered; the gate and `settle` run
    STARTED = "started"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing to tell the person who watches a start."""

    service: str
    unit: str
    progress: Progress
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How a start ended: the last line of each service, in order."""

    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        """True when every service serves."""
        return all(line.progress in (Progress.ALREADY, Progress.STARTED) for line in self.lines)


Report = Callable[[Line], None]
One = Callable[[Service], Awaitable[Line]]
"""Starts one service and returns the last line about it."""


def plan(registry: Registry, names: Iterable[str] = (), *, units: Collection[str] | None = None) -> tuple[Service, ...]:
    """Return the services to start, in order (`start.order`, then name); all of them without `names`.

    With `units` only those of these units. Raises KeyError with the first name that is unknown.
    """
    wanted = set(names)
    for name in sorted(wanted):
        registry.get(name)
    return tuple(
        service
        for service in registry
        if (not wanted or service.name in wanted) and (units is None or service.unit in units)
    )


def describe(services: Sequence[Service]) -> tuple[Line, ...]:
    """Return what a start would do, for `--dry-run`."""
    lines = []
    for place, one in enumerate(services):
        beside = [other.name for other in services[:place] if may_stand_beside(one, other)]
        why = (
            f"wait up to {one.start.timeout.total_seconds():g} s until it serves, "
            f"then {one.start.settle.total_seconds():g} s more"
        )
        if beside:
            why += f"; beside {', '.join(beside)}"
        lines.append(Line(service=one.name, unit=one.unit, progress=Progress.PLANNED, why=why))
    return tuple(lines)


async def start(services: Sequence[Service], one: One, *, slots: Mapping[str, str] = EMPTY) -> Started:
    """Start `services` in the order given, and return when each has ended. Runs on the loop.

    A service waits for every one before it, but for those that it may start beside. `slots` is UUID → address, for
    services whose `gpus:` name the same cards differently.
    """
    ends: list[asyncio.Task[Line]] = []

    async def in_turn(place: int, service: Service) -> Line:
        before = [
            end
            for end, other in zip(ends[:place], services, strict=False)
            if not may_stand_beside(service, other, slots)
        ]
        if before:
            await asyncio.wait(before)
        return await one(service)

    for place, service in enumerate(services):
        ends.append(asyncio.ensure_future(in_turn(place, service)))
    try:
        lines = await asyncio.gather(*ends)
    finally:
        for end in ends:
            end.cancel()
    return Started(lines=tuple(lines))


def may_stand_beside(one: Service, other: Service, slots: Mapping[str, str] = EMPTY) -> bool:
    """Return whether two services may start at the same time: both say so, and they share no GPU."""
    if not (one.start.parallel and other.start.parallel):
        return False
    if not one.gpus or not other.gpus:
        return True
    if isinstance(one.gpus, str) or isinstance(other.gpus, str):
        return False
    mine, theirs = ({slots.get(gpu, gpu) for gpu in service.gpus} for service in (one, other))
    # A UUID whose slot is not known may be any card.
    unknown = any(gpu.startswith(("GPU-", "MIG-")) for gpu in mine | theirs) and not _same_kind(mine | theirs)
    return mine.isdisjoint(theirs) and not unknown


def _same_kind(gpus: Iterable[str]) -> bool:
    return len({gpu.startswith(("GPU-", "MIG-")) for gpu in gpus}) == 1
