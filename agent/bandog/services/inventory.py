"""The GPUs of this host by UUID: who they are, where they sit, what they went through, which may be used.

Looks come from the probe's worker, orders from actions and people, Xids from the pipeline; each is a short step
in memory under one lock, and nothing here waits for a disk. What is to be written is handed out by `drain`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from ..domain import cards, gpu_history, sightings, subjects
from ..domain.gpus import Exclusion, GpuEvent, GpuLook, KnownGpu, Look, UnknownGpu
from ..domain.model import Finding
from ..host.site import Clock
from .gpu_names import unknown

FRESH = timedelta(minutes=3)
"""A look older than this says nothing of now: the probe looks every 10 s, once a minute at the worst."""
WRITE_SEEN = timedelta(hours=1)
"""How often it is worth a write that a card was seen once more."""
MOST_WORDS = 200
"""Characters of a reason; fifty exclusions must fit into a row."""
MOST_EVENTS = 2048
"""Lines of history that wait to be written; beyond, the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What is to be written: cards as they are now, lines of history."""

    cards: tuple[KnownGpu, ...] = ()
    events: tuple[GpuEvent, ...] = ()


class Inventory:
    """Implements `host.site.Gpus`. `changed` is called, from any thread, when `drain` has something that matters.

    `known` and `events` are what the store kept, the events of a card oldest first.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        known: Iterable[KnownGpu] = (),
        events: Iterable[GpuEvent] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._cards: Mapping[str, KnownGpu] = {one.uuid: one for one in known}
        self._histories: dict[str, tuple[GpuEvent, ...]] = {}
        for event in events:
            past = self._histories.get(event.uuid, ())
            self._histories[event.uuid] = (*past, event)[-gpu_history.KEPT :]
        self._look: Look | None = None
        self._answered: Look | None = None
        self._written = {one.uuid: one.last_seen for one in self._cards.values()}
        self._dirty: set[str] = set()
        self._lines: dict[tuple[str, str, str, float, object], GpuEvent] = {}

    # --- what a look tells ---------------------------------------------------------------------

    def take(self, look: Look) -> None:
        """Take one look of the probe; thread-safe. One that comes after a newer one is dropped."""
        with self._lock:
            last = self._look
            if last is not None and last.at.boot_id == look.at.boot_id and look.at.boottime < last.at.boottime:
                return  # a round that hung and was given up comes back late
            self._look = look
            if look.error or look.hung:
                return
            before, self._answered = self._answered, look
            seen = sightings.sight(self._cards, look)
            self._cards = seen.cards
            self._dirty.update(seen.changed)
            for event in seen.events:
                self._note(event)
            for gpu in look.gpus:
                earlier = next((one for one in before.gpus if one.uuid == gpu.uuid), None) if before else None
                for event in sightings.growth(self._histories.get(gpu.uuid, ()), earlier, gpu, look):
                    self._note(event)
                if gpu.uuid and self._is_due(gpu.uuid):
                    self._dirty.add(gpu.uuid)
            self._settle()
            news = bool(self._dirty or self._lines)
        if news:
            self._changed()

    def _is_due(self, uuid: str) -> bool:
        written = self._written.get(uuid)
        seen = self._cards[uuid].last_seen
        return written is None or written.boot_id != seen.boot_id or seen.since(written) >= WRITE_SEEN

    def settle(self) -> None:
        """End the probations whose time has passed; for the clock, as looks may fail to come."""
        with self._lock:
            self._settle()
            news = bool(self._dirty)
        if news:
            self._changed()

    def _settle(self) -> None:
        now = self._clock.now()
        for card in list(self._cards.values()):
            ended = cards.settle(card, now)
            if ended is not card:
                self._put(ended, GpuEvent(uuid=card.uuid, at=now, what="probation-ended"))

    def look(self) -> Look | None:
        """Return the newest look, None before the first."""
        return self._look

    def answered(self) -> Look | None:
        """Return the newest look in which the driver answered."""
        return self._answered

    def known(self) -> tuple[KnownGpu, ...]:
        """Return every card ever seen here, in PCI order of its last slot."""
        return tuple(sorted(self._cards.values(), key=lambda one: (subjects.pci_order(one.slot), one.uuid)))

    def usable(self) -> tuple[GpuLook, ...]:
        """Return the GPUs of the newest look that a service may be started on, in PCI order."""
        look = self._look
        if look is None or look.error or look.hung or self._clock.now().since(look.at) > FRESH:
            return ()
        fit = [one for one in look.gpus if not unfit(one) and self._is_in(one)]
        return tuple(sorted(fit, key=lambda one: subjects.pci_order(one.address)))

    def _is_in(self, gpu: GpuLook) -> bool:
        card = self._cards.get(gpu.uuid)
        return card is None or card.usable

    # --- orders --------------------------------------------------------------------------------

    def exclude(
        self,
        address: str,
        *,
        reason: str,
        by: str,
        kind: str = "",
        xid: int | None = None,
        incident: int | None = None,
    ) -> KnownGpu:
        """Keep the card at `address` (or of that UUID) out of use; with `kind` or `xid` it is a fault's doing."""
        now = self._clock.now()
        new = Exclusion(
            reason=reason[:MOST_WORDS], by=by[:MOST_WORDS], since=now, kind=kind, xid=xid, incident=incident
        )

        def step(card: KnownGpu) -> KnownGpu:
            return cards.exclude(card, new, now)

        return self._step(address, step, "excluded", by=new.by, reason=new.reason, xid=xid, incident=incident)

    def give_back(self, address: str, *, by: str) -> KnownGpu:
        """Return the card to use on a person's word; unchanged where it is not excluded."""
        now = self._clock.now()
        return self._step(
            address, lambda card: cards.give_back(card, by[:MOST_WORDS], now), "returned", by=by[:MOST_WORDS]
        )

    def on_probation(self, address: str, *, by: str = "boot check") -> KnownGpu:
        """Put the card on probation after it passed the boot check; unchanged unless `awaiting_check` names it."""
        now = self._clock.now()
        return self._step(address, lambda card: cards.pass_check(card, now), "probation", by=by)

    def awaiting_check(self) -> tuple[KnownGpu, ...]:
        """Return the cards that a fault of an earlier boot keeps out and that a passed check brings back."""
        now = self._clock.now()
        return tuple(card for card in self.known() if cards.awaits_check(card, now))

    def forget(self, address: str, *, by: str) -> KnownGpu:
        """Expect the card no more: it is never missing. Its history and its exclusion stay with its UUID."""
        return self._step(address, lambda card: replace(card, expected=False), "forgotten", by=by)

    def _step(self, address: str, step: Callable[[KnownGpu], KnownGpu], what: str, **data: object) -> KnownGpu:
        with self._lock:
            card = self.find(address)
            after = step(card)
            if after != card:
                told = {name: value for name, value in data.items() if value is not None}
                if after.exclusion is not None:
                    told["state"] = after.exclusion.state
                self._put(after, GpuEvent(uuid=card.uuid, at=self._clock.now(), what=what, data=told))
            news = after != card
        if news:
            self._changed()
        return after

    # --- history -------------------------------------------------------------------------------

    def seen(self, finding: Finding) -> None:
        """Take a finding of the pipeline into the history of the card that it speaks of."""
        if finding.kind != "nvidia.xid" or subjects.type_of(finding.subject) != "gpu":
            return
        with self._lock:
            card = self.at(subjects.id_of(finding.subject))
            event = gpu_history.of_finding(finding, card.uuid) if card is not None else None
            news = event is not None and self._note(event)
        if news:
            self._changed()

    def history(self, uuid: str) -> tuple[GpuEvent, ...]:
        """Return what happened to a card, oldest first, the newest lines only."""
        return self._histories.get(uuid, ())

    def _note(self, event: GpuEvent) -> bool:
        """Keep an event; true if it made a line of its own, false if one only counts more."""
        past = self._histories.get(event.uuid, ())
        self._histories[event.uuid], line = gpu_history.add(past, event)
        if line is None:
            return False
        self._lines[_key(line)] = line
        while len(self._lines) > MOST_EVENTS:
            del self._lines[next(iter(self._lines))]
        return line is event

    def _put(self, card: KnownGpu, event: GpuEvent) -> None:
        self._cards = {**self._cards, card.uuid: card}
        self._dirty.add(card.uuid)
        self._note(event)

    def drain(self) -> Drained:
        """Return what has changed since the last time, to be written."""
        with self._lock:
            changed = tuple(self._cards[uuid] for uuid in sorted(self._dirty) if uuid in self._cards)
            for card in changed:
                self._written[card.uuid] = card.last_seen
            events = tuple(self._lines.values())
            self._dirty.clear()
            self._lines.clear()
        return Drained(cards=changed, events=events)

    def unwritten(self, drained: Drained) -> None:
        """Take back what the store refused; what has changed since is newer."""
        with self._lock:
            self._dirty.update(card.uuid for card in drained.cards)
            for event in drained.events:
                self._lines.setdefault(_key(event), event)

    # --- names ---------------------------------------------------------------------------------

    def at(self, address: str) -> KnownGpu | None:
        """Return the card in a slot (the one spelling): the one seen there last, else whoever is expected there."""
        look = self._answered
        gpu = look.of(address) if look is not None else None
        if gpu is not None and gpu.uuid in self._cards:
            return self._cards[gpu.uuid]
        there = [one for one in self._cards.values() if one.slot == address]
        return max(there, key=lambda one: (one.expected, one.last_seen.utc), default=None)

    def find(self, name: str) -> KnownGpu:
        """Return the card of a PCI address in any spelling or of a UUID; raises UnknownGpu with words for a person."""
        uuid = next((uuid for uuid in self._cards if uuid.lower() == name.strip().lower()), None)
        if uuid is not None:
            return self._cards[uuid]
        for spelling in (name, f"0000:{name.strip()}"):  # lspci leaves out the domain 0000
            with suppress(ValueError):
                card = self.at(subjects.pci_address(spelling))
                if card is not None:
                    return card
        raise UnknownGpu(unknown(name, self.known()))


def _key(line: GpuEvent) -> tuple[str, str, str, float, object]:
    return (line.uuid, line.what, line.at.boot_id, line.at.boottime.total_seconds(), line.data.get("xid"))


def unfit(gpu: GpuLook) -> str:
    """Return why no service may be started on a GPU, "" where nothing speaks against it.

    A pending remap alone does not: the driver goes on with it until a reset (Xid 63).
    """
    if gpu.lost:
        return "it has fallen off the bus"
    if not gpu.uuid:
        return "it does not answer" + "".join(f": {why}" for why in list(gpu.errors.values())[:1])
    if gpu.remap_failed:
        return "row remapping failed"
    if gpu.recovery not in (None, "none"):
        return f"the driver asks for {gpu.recovery}"
    return ""
