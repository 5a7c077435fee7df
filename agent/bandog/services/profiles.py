"""Which GPUs a service is to run on, and by which numbers CUDA knows them now. Pure.

With CUDA_DEVICE_ORDER=PCI_BUS_ID a card's number is its rank by PCI address among the cards that CUDA sees now:
a missing or lost one shifts all behind it, and NVML's index is another number altogether. An invalid entry of
CUDA_VISIBLE_DEVICES hides everything after it, so the list is made anew for each start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..domain.gpus import GpuLook, KnownGpu, Look
from ..domain.model import EMPTY
from ..domain.subjects import pci_order
from .registry import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The GPUs for a service, in PCI order, by the profile that they satisfy (`place` in its list, from 0).

    `indices` are CUDA's numbers of them under PCI_BUS_ID; `by_uuid` is true where the profile wants UUIDs.
    """

    profile: Mapping[str, Any]
    place: int
    gpus: tuple[GpuLook, ...]
    indices: tuple[int, ...]
    by_uuid: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The PCI addresses, in the one spelling."""
        return tuple(one.address for one in self.gpus)

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs, in the same order."""
        return tuple(one.uuid for one in self.gpus)

    @property
    def visible(self) -> str:
        """The value of CUDA_VISIBLE_DEVICES: integers, as vLLM cannot read UUIDs, or what the profile says."""
        return ",".join(self.uuids) if self.by_uuid else ",".join(str(one) for one in self.indices)

    @property
    def env(self) -> dict[str, str]:
        """The variables that start the service on these GPUs."""
        return {
            **{str(name): str(value) for name, value in self.profile.get("env", {}).items()},
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self.visible,
            "BANDOG_GPUS": ",".join(self.addresses),
            "BANDOG_GPU_UUIDS": ",".join(self.uuids),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No profile can be satisfied; `why` says what would be needed and what stands in the way of each card."""

    why: str
    needs: int = 0
    has: int = 0


def choose(
    service: Service,
    look: Look,
    usable: Iterable[GpuLook],
    *,
    without: Collection[str] = (),
    reasons: Mapping[str, str] = EMPTY,
) -> Choice | Refusal:
    """Return the GPUs of the first profile that the service's healthy cards satisfy.

    `look` is the newest look, `usable` those of its GPUs that may be used (`Gpus.usable`), `without` addresses that
    are to be left out besides. `reasons` say why a card, by address, is not usable; see `reasons_of`. Of several
    sets the one with the most NVLink or switch pairs is taken, then on the fewest NUMA nodes, then first in PCI order.
    """
    if not service.profiles:
        return Refusal(why=f"{service.name} has no profiles")
    if not service.gpus:
        return Refusal(why=f"{service.name} uses no GPUs by its `gpus:`")
    left_out = dict.fromkeys(without, "it is left out") | dict(reasons)
    fit = [
        one for one in usable if is_of(service, one.address, one.uuid) and one.address not in without and not one.mig
    ]
    fit.sort(key=lambda one: pci_order(one.address))
    seen = cuda_order(look)
    fit = [one for one in fit if one.address in seen]
    for place, profile in enumerate(service.profiles):
        count = int(profile["count"])
        if count > len(fit):
            continue
        by_uuid = profile.get("devices") == "uuid"
        partitioned = next((one.address for one in look.gpus if one.mig), None)
        if partitioned is not None and not by_uuid:
            why = f"{short(partitioned)} is partitioned (MIG), which leaves CUDA's numbers unknown"
            return Refusal(why=f"{why}; `devices: uuid` would not need them", needs=count, has=len(fit))
        gpus = _island(fit, count, look.peers)
        return numbered(Choice(profile=profile, place=place, gpus=gpus, indices=(), by_uuid=by_uuid), seen)
    return _refuse(service, look, fit, left_out)


def numbered(choice: Choice, order: Sequence[str]) -> Choice:
    """Return the choice with the numbers that CUDA gives its cards when it sees `order` (addresses, in its order).

    Raises ValueError for a card that is not in it.
    """
    return replace(choice, indices=tuple(order.index(one) for one in choice.addresses))


def cuda_order(look: Look) -> tuple[str, ...]:
    """Return the addresses that CUDA enumerates by PCI_BUS_ID: every card that is there and answers.

    Whether CUDA counts a card that the driver still lists and that has fallen off the bus, no document tells; the
    preflight asks CUDA itself, where its library is there.
    """
    seen = [one.address for one in look.gpus if one.uuid and not one.lost]
    return tuple(sorted(seen, key=pci_order))


def reasons_of(look: Look | None, known: Iterable[KnownGpu], unfit: Mapping[str, str] = EMPTY) -> dict[str, str]:
    """Return, by address, why a card is not used: kept out, not there, or `unfit` as the caller found it."""
    reasons = dict(unfit)
    present = {one.uuid for one in look.gpus if one.uuid} if look is not None and not look.error else None
    for card in known:
        if not card.usable and card.exclusion is not None:
            one = card.exclusion
            reasons[card.slot] = f"is excluded since {one.since.utc:%Y-%m-%d %H:%M} UTC: {one.reason}"
        elif card.expected and present is not None and card.uuid not in present:
            reasons.setdefault(card.slot, "is missing")
    return reasons


def short(address: str) -> str:
    """Return an address as people say it: without the domain where that is 0000."""
    return address.removeprefix("0000:")


def is_of(service: Service, address: str, uuid: str = "") -> bool:
    """Return whether a card is one of a service's, by its `gpus:`."""
    return service.gpus == "all" or address in service.gpus or uuid in service.gpus


def _refuse(service: Service, look: Look, fit: Sequence[GpuLook], reasons: Mapping[str, str]) -> Refusal:
    needs = min(int(one["count"]) for one in service.profiles)
    there = {one.address for one in fit}
    said = []
    for address in sorted({*reasons, *(one.address for one in look.gpus)} - there, key=pci_order):
        gpu = look.of(address)
        if not is_of(service, address, gpu.uuid if gpu is not None else ""):
            continue
        if gpu is not None and gpu.mig:
            said.append(f"{short(address)} is partitioned (MIG)")
        else:
            said.append(f"{short(address)} {reasons.get(address, 'cannot be used')}")
    of = "the host" if service.gpus == "all" else f"{len(service.gpus)} listed"
    plural = "" if needs == 1 else "s"
    why = f"{service.name} needs {needs} healthy GPU{plural} of {of} for its smallest profile and has {len(fit)}"
    return Refusal(why=why + (f": {'; '.join(said)}" if said else ""), needs=needs, has=len(fit))


def _island(fit: Sequence[GpuLook], count: int, peers: Iterable[tuple[str, str]]) -> tuple[GpuLook, ...]:
    """Return the `count` GPUs that are joined best, grown from each card in turn. `fit` stands in PCI order."""
    joined = {frozenset(pair) for pair in peers}

    def is_joined(one: GpuLook, other: GpuLook) -> bool:
        return frozenset((one.address, other.address)) in joined

    best: tuple[tuple[int, int, tuple[int, ...]], tuple[int, ...]] | None = None
    for seed in range(len(fit)):
        chosen = [seed]
        while len(chosen) < count:
            nodes = {fit[one].numa for one in chosen}
            rest = [one for one in range(len(fit)) if one not in chosen]
            chosen.append(
                min(
                    rest,
                    key=lambda one: (
                        -sum(is_joined(fit[one], fit[other]) for other in chosen),
                        fit[one].numa not in nodes,
                        one,
                    ),
                )
            )
        places = tuple(sorted(chosen))
        pairs = sum(is_joined(fit[a], fit[b]) for at, a in enumerate(places) for b in places[at + 1 :])
        score = (-pairs, len({fit[one].numa for one in places}), places)
        if best is None or score < best[0]:
            best = (score, places)
    return tuple(fit[one] for one in best[1]) if best is not None else ()
