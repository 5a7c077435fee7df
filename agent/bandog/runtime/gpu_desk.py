"""Joins the inventory of GPUs to the daemon: to the store, to the pipeline's findings, to the operator's orders."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from ..domain import gpu_history, subjects
from ..domain.gpus import GpuEvent, KnownGpu, UnknownGpu
from ..domain.model import Fact, Finding, Instant
from ..services.inventory import Inventory
from ..store.rows import AddEvent, AddGpuEvent, Row, SaveGpu
from .control import Handler, OperatorError
from .gpu_lines import exclusion_line, exclusion_words, gpu_lines
from .operations import within


class Locator(Protocol):
    """The part of the locator that tells which services use a GPU."""

    def holding(self, address: str) -> tuple[str, ...]:
        """Return the services whose processes hold it."""

    def assigned(self, address: str) -> Any:
        """Return the services whose `gpus:` hold it."""


class GpuDesk:
    """Belongs to the loop. `commit` hands rows to the store; `inventory` is set right after it was built."""

    def __init__(self, *, now: Callable[[], Instant], commit: Callable[..., asyncio.Future[None]]) -> None:
        self.inventory: Inventory
        self.locator: Locator
        self._now = now
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    # --- to the store --------------------------------------------------------------------------

    def changed(self) -> None:
        """The inventory has something to be written: at once on the loop, so that no later row comes before it."""
        if threading.get_ident() == self._thread:
            self.save()
        else:
            self._loop.call_soon_threadsafe(self.save)

    def save(self) -> None:
        """Hand what has changed to the store; never waits."""
        drained = self.inventory.drain()
        rows: list[Row] = [SaveGpu(card=one) for one in drained.cards]
        rows += [AddGpuEvent(event=one) for one in drained.events]
        if not rows:
            return

        def written(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is not None:
                self.inventory.unwritten(drained)

        self._commit(*rows).add_done_callback(written)

    # --- to the pipeline -----------------------------------------------------------------------

    def annotate(self, finding: Finding) -> Finding:
        """Take an Xid into the card's history, and add the card's papers to a finding about a GPU."""
        if subjects.type_of(finding.subject) != "gpu":
            return finding
        self.inventory.seen(finding)
        card = self.inventory.at(subjects.id_of(finding.subject))
        if card is None or not finding.raised:
            return finding
        facts: dict[str, Fact] = dict(finding.facts)
        for name, value in _papers(card, self.inventory.history(card.uuid)).items():
            facts.setdefault(name, value)
        return replace(finding, facts=facts)

    # --- for people ----------------------------------------------------------------------------

    def lines(self, *, gone: bool = False) -> list[dict[str, Any]]:
        """Return the cards as `bandog status --json` has them; with `gone` those that nobody expects too."""
        inventory = self.inventory
        lines = gpu_lines(inventory.known(), inventory.look(), services=self._services, history=inventory.history)
        return lines if gone else [one for one in lines if one["present"] or one["expected"]]

    def _services(self, address: str) -> tuple[str, ...]:
        names = (*self.locator.holding(address), *(one.name for one in self.locator.assigned(address)))
        return tuple(dict.fromkeys(names))

    def table(self) -> dict[str, Handler]:
        """Return operation name → function, for the control socket."""
        return {
            "gpu_list": self.listed,
            "gpu_exclude": self.exclude,
            "gpu_return": self.give_back,
            "gpu_forget": self.forget,
        }

    def listed(self) -> list[dict[str, Any]]:
        """Return every card ever seen."""
        return self.lines(gone=True)

    async def exclude(self, address: str, reason: str, by: str) -> dict[str, Any]:
        """Keep a card out of use until a person returns it."""
        if not reason.strip():
            raise OperatorError("an exclusion needs a reason")
        before = self._find(address)
        card = self.inventory.exclude(before.uuid, reason=reason, by=by)
        if card == before and before.exclusion is not None:
            raise OperatorError(f"{_name(card)} is {exclusion_words(exclusion_line(before.exclusion))} already")
        await self._record("gpu-excluded", f"{_name(card)}: {reason}", by)
        running = self.locator.holding(card.slot)
        note = f"; {', '.join(running)} still uses it until its next relaunch" if running else ""
        return self._answer(card, f"kept out: {_name(card)}{note}")

    async def give_back(self, address: str, by: str) -> dict[str, Any]:
        """Return a card to use."""
        before = self._find(address)
        if before.exclusion is None:
            raise OperatorError(f"{_name(before)} is not kept out; bandog gpu list shows which are")
        card = self.inventory.give_back(before.uuid, by=by)
        await self._record("gpu-returned", _name(card), by)
        lemon = "; it was kept out three times within four weeks: think of replacing it" if card.lemon else ""
        return self._answer(card, f"in use again: {_name(card)}, from the next start of its services on{lemon}")

    async def forget(self, address: str, by: str) -> dict[str, Any]:
        """Expect a card no more."""
        before = self._find(address)
        look = self.inventory.answered()
        if look is not None and any(one.uuid == before.uuid for one in look.gpus):
            raise OperatorError(f"{_name(before)} is there; forget is for a card that was taken out")
        if not before.expected:
            raise OperatorError(f"{_name(before)} is not expected already")
        card = self.inventory.forget(before.uuid, by=by)
        await self._record("gpu-forgotten", _name(card), by)
        return self._answer(card, f"no longer expected: {_name(card)}; its history stays with its UUID")

    def _find(self, address: str) -> KnownGpu:
        try:
            return self.inventory.find(address)
        except UnknownGpu as error:
            raise OperatorError(str(error)) from None

    async def _record(self, what: str, why: str, by: str) -> None:
        # The card itself went to the store just before, so this commit tells that it is there.
        written: Awaitable[None] = self._commit(
            AddEvent(incident=0, at=self._now(), what=what, why=why, data={"by": by})
        )
        await within(written)

    def _answer(self, card: KnownGpu, text: str) -> dict[str, Any]:
        line = next(one for one in self.lines(gone=True) if one["uuid"] == card.uuid)
        return {"text": text, "gpu": line}


def _papers(card: KnownGpu, history: tuple[GpuEvent, ...]) -> dict[str, Fact]:
    """What a manufacturer asks for, and what a policy wants to know of a card."""
    papers: dict[str, Fact] = {
        "uuid": card.uuid,
        "serial": card.serial,
        "part_number": card.part_number,
        "history": gpu_history.line(history),
    }
    if card.exclusion is not None and card.exclusion.state == "probation":
        papers["on_probation"] = True
    return papers


def _name(card: KnownGpu) -> str:
    serial = f", serial {card.serial}" if card.serial else ""
    return f"{card.slot} ({card.uuid}{serial})"
