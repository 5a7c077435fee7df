"""The simulated GPUs, as CUDA would show them to this process, and the memory that each process holds of them.

Read from the state file of tests/fakenvml and its folder of claims; its README describes both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import alive


@dataclass(frozen=True)
class Card:
    """One GPU of the state file."""

    uuid: str
    address: str
    minor: int
    total: int
    used: int
    clock: int
    lost: bool


class Cards:
    """All GPUs of the machine."""

    def __init__(self, state: Path, devices: Path | None = None) -> None:
        self._state = state
        self._devices = devices
        self._stamp: tuple[int, int, int] | None = None
        self._cards: dict[str, Card] = {}

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Cards | None:
        """Return the GPUs of FAKENVML_STATE, None where there are none to be simulated."""
        state, devices = environ.get("FAKENVML_STATE"), environ.get("FAKEGPU_DEV")
        return cls(Path(state), Path(devices) if devices else None) if state else None

    def all(self) -> dict[str, Card]:
        """Return the GPUs by UUID as the file has them now; a file in the middle of a change changes nothing."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = self._state.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp != self._stamp:
                state = json.loads(self._state.read_text())
                cards = [_card(place, one) for place, one in enumerate(state["gpus"]) if not one.get("missing")]
                self._cards = {card.uuid: card for card in cards}
                self._stamp = stamp
        return self._cards

    def enumerated(self, order: str) -> list[Card]:
        """Return the GPUs in CUDA's order: PCI_BUS_ID, else the fastest first (CUDA_DEVICE_ORDER)."""
        by_address = sorted(self.all().values(), key=lambda card: card.address)
        if order == "PCI_BUS_ID":
            return by_address
        return sorted(by_address, key=lambda card: -card.clock)

    def visible(self, environ: Mapping[str, str]) -> list[str]:
        """Return the UUIDs that CUDA_VISIBLE_DEVICES leaves, in its order.

        ValueError for an entry that is no number, as vLLM raises it. The first entry without a GPU
        hides itself and all after it; one that is named twice hides all.
        """
        there = self.enumerated(environ.get("CUDA_DEVICE_ORDER", ""))
        listed = environ.get("CUDA_VISIBLE_DEVICES")
        if listed is None:
            return [card.uuid for card in there]
        chosen: list[str] = []
        numbers = [int(entry) for entry in listed.split(",")] if listed else []
        for number in numbers:
            if not 0 <= number < len(there):
                break
            chosen.append(there[number].uuid)
        return chosen if len(set(chosen)) == len(chosen) else []

    def hold(self, uuid: str) -> Hold:
        """Begin to hold a GPU: its device file is open from here on."""
        return Hold(self, uuid, self._state.parent / "claims", self._devices)


class Hold:
    """What this process holds of one GPU."""

    def __init__(self, cards: Cards, uuid: str, claims: Path, devices: Path | None) -> None:
        self._cards = cards
        self._uuid = uuid
        self._claims = claims
        self._claim = claims / str(os.getpid())
        self._card = cards.all()[uuid]
        claims.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = None
        if devices is not None:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(devices / f"nvidia{self._card.minor}", os.O_RDWR | os.O_CLOEXEC)

    @property
    def total(self) -> int:
        """The memory of the GPU in bytes."""
        return self._card.total

    def answers(self) -> bool:
        """False once the GPU is lost or gone."""
        card = self._cards.all().get(self._uuid)
        return card is not None and not card.lost

    def free(self) -> int:
        """Return the bytes that nobody else holds."""
        card = self._cards.all().get(self._uuid, self._card)
        return max(0, card.total - card.used - sum(size for pid, size in self._others() if alive(pid)))

    def take(self, size: int) -> bool:
        """Hold `size` bytes in all from now on; False, and nothing changed, where there are not as many."""
        with self._locked():
            if size > self.free():
                return False
            # In one step, so that no reader sees a claim half written.
            fresh = self._claim.with_name(f".{self._claim.name}")
            fresh.write_text(f"{self._uuid} {size}\n")
            fresh.replace(self._claim)
        return True

    def release(self) -> None:
        """Hold nothing any more."""
        self._claim.unlink(missing_ok=True)

    def _others(self) -> Iterator[tuple[int, int]]:
        for claim in self._claims.iterdir():
            if claim.name.isdecimal() and claim != self._claim:
                with contextlib.suppress(OSError, ValueError):
                    for line in claim.read_text().splitlines():
                        uuid, size = line.split()
                        if uuid == self._uuid:
                            yield int(claim.name), int(size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Look and take in one step: two servers that start at once must not both get the last of it."""
        folder = os.open(self._claims, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _card(place: int, given: Mapping[str, Any]) -> Card:
    processes = given.get("processes") or []  # of the story, besides those that claim for themselves
    return Card(
        uuid=given["uuid"],
        address=str(given["pci"]).lower(),
        minor=int(given.get("minor", place)),
        total=int(given["memory"]["total"]),
        used=int(given["memory"].get("used", 0)) + sum(int(one.get("memory") or 0) for one in processes),
        clock=int(given.get("clock_max", 0)),
        lost=bool(given.get("lost")),
    )
