"""What looks at the GPUs say of a start: who holds memory there, what is missing, whether it is at rest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta

from ..domain.gpus import GpuLook, KnownGpu, Look
from .profiles import is_of, short
from .registry import Service

LITTLE = 512 << 20
"""A holder of less does not stand in the way of a model (nvidia-resiliency-ext waits until no more is left)."""
STEADY = timedelta(seconds=10)
TOLERANCE = 0.01
_STEP = 64 << 20


def cards_of(service: Service, look: Look | None, only: Collection[str] = ()) -> tuple[GpuLook, ...]:
    """Return the GPUs of a service in a look, those at the addresses `only` where it is given some; none without."""
    if look is None or look.error or look.hung or not service.gpus:
        return ()
    mine = (one for one in look.gpus if is_of(service, one.address, one.uuid))
    return tuple(one for one in mine if not only or one.address in only)


def missing(service: Service, look: Look | None, known: Iterable[KnownGpu]) -> tuple[str, ...]:
    """Return the addresses of a service's usable cards that the look does not show, for people."""
    if look is not None and not look.error and not look.hung:
        there = {one.uuid for one in look.gpus}
        gone = [one for one in known if one.expected and one.usable and one.uuid not in there]
    else:
        gone = [one for one in known if one.expected and one.usable]
    return tuple(short(one.slot) for one in gone if service.gpus and is_of(service, one.slot, one.uuid))


def holders(cards: Iterable[GpuLook], stranger: Callable[[int], str | None]) -> tuple[str, ...]:
    """Return who stands in the way, for people; `stranger` names a process that is nobody's of ours, else None."""
    found: dict[str, None] = {}
    for card in cards:
        for one in card.holders or ():
            if one.memory is not None and one.memory < LITTLE:
                continue
            who = stranger(one.pid)
            if who is not None:
                memory = f" with {one.memory >> 20} MiB" if one.memory is not None else ""
                found[f"{who}{memory} on {short(card.address)}"] = None
    return tuple(found)


def used(cards: Iterable[GpuLook]) -> dict[str, int]:
    """Return address → bytes in use, where the driver tells."""
    return {one.address: one.memory_used for one in cards if one.memory_used is not None}


def is_steady(samples: Sequence[tuple[timedelta, dict[str, int]]]) -> bool:
    """Return whether memory has kept within 1 % for 10 s; `samples` are (since boot, `used`), oldest first."""
    if not samples:
        return False
    last, now = samples[-1]
    recent = [one for at, one in samples if last - at <= STEADY]
    if len(recent) == len(samples) and last - samples[0][0] < STEADY:
        return False
    return all(_near(one, now) for one in recent)


def _near(one: dict[str, int], other: dict[str, int]) -> bool:
    return one.keys() == other.keys() and all(
        abs(one[address] - other[address]) <= max(other[address] * TOLERANCE, _STEP) for address in other
    )
