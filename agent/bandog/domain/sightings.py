"""Which card is where: from one look at the GPUs to identities, slots, and what has changed since the last.

A card is known by its UUID for ever; its slot is where it was seen last. The first look defines what is expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .gpus import GpuEvent, GpuLook, KnownGpu, Look

_COUNTERS = {"ecc_corrected": "ecc-corrected", "ecc_uncorrected": "ecc-uncorrected", "remapped": "remapped"}
"""Counter of a look → event of the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look changes: `cards` as they are now, the UUIDs of which `changed`, and `events`."""

    cards: Mapping[str, KnownGpu]
    changed: tuple[str, ...] = ()
    events: tuple[GpuEvent, ...] = ()


def sight(known: Mapping[str, KnownGpu], look: Look) -> Sighting:
    """Return what `look` tells of the cards; a look in which the driver did not answer tells nothing."""
    cards = dict(known)
    changed: list[str] = []
    events: list[GpuEvent] = []
    present = {gpu.uuid: gpu for gpu in look.gpus if gpu.uuid}
    for uuid, gpu in present.items():
        old = cards.get(uuid)
        if old is None:
            events.append(_first(gpu, look))
            events += _replaces(cards, changed, gpu, look, present)
            card = _identity(KnownGpu(uuid=uuid, slot=gpu.address, first_seen=look.at, last_seen=look.at), gpu)
        else:
            card = replace(_identity(old, gpu), last_seen=look.at, expected=True)
            events += _changes(old, card, look)
        if old is None or replace(card, last_seen=old.last_seen) != old:
            changed.append(uuid)
        cards[uuid] = card
    return Sighting(cards=cards, changed=tuple(changed), events=tuple(events))


def growth(history: Sequence[GpuEvent], before: GpuLook | None, gpu: GpuLook, look: Look) -> Iterator[GpuEvent]:
    """Yield an event for each counter of a card that has grown since the look `before`, else since its history."""
    for name, what in _COUNTERS.items():
        old = getattr(before, name) if before is not None else _total(history, name, what)
        new = getattr(gpu, name)
        if gpu.uuid and old is not None and new is not None and new > old:
            yield GpuEvent(uuid=gpu.uuid, at=look.at, what=what, data={"count": new - old, "total": new})


def _total(history: Sequence[GpuEvent], name: str, what: str) -> int | None:
    for event in reversed(history):
        value = event.data.get("total" if event.what == what else name) if event.what in (what, "seen") else None
        if isinstance(value, int):
            return value
    return None


def _first(gpu: GpuLook, look: Look) -> GpuEvent:
    counters = {name: getattr(gpu, name) for name in _COUNTERS if getattr(gpu, name) is not None}
    return GpuEvent(uuid=gpu.uuid, at=look.at, what="seen", data={"slot": gpu.address, "name": gpu.name, **counters})


def _identity(card: KnownGpu, gpu: GpuLook) -> KnownGpu:
    """What the driver does not tell this time stays as it was known."""
    return replace(
        card,
        slot=gpu.address,
        serial=gpu.serial or card.serial,
        name=gpu.name or card.name,
        part_number=gpu.part_number or card.part_number,
        vbios=gpu.vbios or card.vbios,
    )


def _replaces(
    cards: dict[str, KnownGpu], changed: list[str], gpu: GpuLook, look: Look, present: Mapping[str, GpuLook]
) -> Iterator[GpuEvent]:
    """A card never seen before sits where another one was: that one has been taken out."""
    for uuid, other in list(cards.items()):
        if other.slot == gpu.address and other.expected and uuid not in present:
            cards[uuid] = replace(other, expected=False)
            changed.append(uuid)
            yield GpuEvent(uuid=uuid, at=look.at, what="replaced", data={"by": gpu.uuid, "slot": gpu.address})
            yield GpuEvent(uuid=gpu.uuid, at=look.at, what="replaces", data={"uuid": uuid, "slot": gpu.address})


def _changes(old: KnownGpu, card: KnownGpu, look: Look) -> Iterator[GpuEvent]:
    if old.slot != card.slot:
        yield GpuEvent(uuid=card.uuid, at=look.at, what="moved", data={"from": old.slot, "to": card.slot})
    if old.vbios and old.vbios != card.vbios:
        yield GpuEvent(uuid=card.uuid, at=look.at, what="vbios", data={"from": old.vbios, "to": card.vbios})
    if not old.expected:
        yield GpuEvent(uuid=card.uuid, at=look.at, what="back", data={"slot": card.slot})
