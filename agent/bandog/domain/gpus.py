"""What one look at the GPUs of a host tells, and what is remembered of each card for years.

A look is what the driver said in one round, call by call: a value is None where the driver did not tell
it, and `errors` says why. Nothing here judges; a probe turns looks into findings, the inventory keeps
identities, histories and exclusions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .model import EMPTY, Instant


class UnknownGpu(LookupError):
    """No card of this host has that address or UUID; the text is one line for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds memory of a GPU: `memory` in bytes, None where the driver cannot tell."""

    pid: int
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """One GPU in one round. `address` has the one spelling of `subjects.pci_address`.

    `index` is NVML's of this round and good for nothing but display: it shifts when a card is missing.
    Memory is in bytes, power in watts, clocks in MHz, temperature in °C, `util` in percent. `throttle`
    holds NVML's names of the reasons in force. `recovery` is the driver's own recovery action (NVML field
    230): none, reset, reboot, drain-p2p, drain-and-reset. `links` has one entry an NVLink, true = up.
    `errors` maps a call's name to NVML's error in words; `lost` is true when the driver says that the
    GPU has fallen off the bus.
    """

    address: str
    uuid: str = ""
    serial: str = ""
    name: str = ""
    part_number: str = ""
    vbios: str = ""
    index: int | None = None
    minor: int | None = None
    numa: int | None = None
    lost: bool = False
    memory_total: int | None = None
    memory_used: int | None = None
    util: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: int | None = None
    sm_clock: int | None = None
    throttle: tuple[str, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    links: tuple[bool, ...] = ()
    recovery: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    holders: tuple[Holder, ...] | None = None
    errors: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One round over all GPUs. `error` is set when the driver as a whole did not answer; then `gpus` is empty.

    `peers` holds the pairs of addresses joined by NVLink or below one PCIe switch, for choosing an island.
    """

    at: Instant
    gpus: tuple[GpuLook, ...] = ()
    driver: str = ""
    library: str = ""
    cuda: str = ""
    error: str = ""
    hung: bool = False
    mismatch: bool = False
    peers: tuple[tuple[str, str], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    def of(self, address: str) -> GpuLook | None:
        """Return the GPU at an address in the one spelling, None if the round did not see it."""
        return next((one for one in self.gpus if one.address == address), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Why a card is kept out of use: `xid` and `kind` of the fault, or only a person's `reason`.

    `state`: `out` (not used), `probation` (used again until `until`; a fault now is final), `final` (not used
    until a person returns it), `ended` (history). `until` is set once it has been on probation, `ended_by` is
    the person who returned the card; it stays empty where a probation ran out.
    """

    reason: str
    by: str
    since: Instant
    state: str = "out"
    kind: str = ""
    xid: int | None = None
    incident: int | None = None
    until: Instant | None = None
    ended: Instant | None = None
    ended_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """One line of a card's history: an Xid, an ECC count, a remapped row, an exclusion."""

    uuid: str
    at: Instant
    what: str
    data: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """One card as the inventory remembers it, by UUID; `slot` is its PCI address when last seen.

    `expected` is false once a person has said that the card is gone (it is then never missing).
    """

    uuid: str
    slot: str
    serial: str = ""
    name: str = ""
    part_number: str = ""
    vbios: str = ""
    first_seen: Instant
    last_seen: Instant
    expected: bool = True
    lemon: bool = False
    exclusions: tuple[Exclusion, ...] = ()

    @property
    def exclusion(self) -> Exclusion | None:
        """The exclusion in force (`out`, `final` or `probation`), None for a card in plain use."""
        last = self.exclusions[-1] if self.exclusions else None
        return None if last is None or last.state == "ended" else last

    @property
    def usable(self) -> bool:
        """True unless it is kept out: a card on probation is used."""
        return self.exclusion is None or self.exclusion.state == "probation"
