"""What is still to be told and to whom, and what the spool must hold of it. Pure: no thread, no clock.

A message goes to every outlet of the names that it is for, and stays in the spool until the last of
them has it. The unit of backoff is the outlet, because what fails is a server and not a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ..domain.codec import from_json, to_json
from ..domain.model import Instant
from ..store.rows import DropMessage, Row, SaveMessage
from .messages import Message
from .outlet_queue import OutletQueue, OutletState, Pace


@dataclass(slots=True)
class _Entry:
    """A message, the outlets that do not have it yet, and those that failed at it at least once."""

    message: Message
    pending: set[str]
    failed: set[str] = field(default_factory=set)
    delivered: bool = False
    fell_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows from an event: rows for the spool, and messages that only the last sink can still tell."""

    rows: tuple[Row, ...] = ()
    unheard: tuple[Message, ...] = ()


class Outbox:
    """Holds messages until each outlet has them. Not thread-safe: the sender locks."""

    def __init__(self, outlets: Mapping[str, Sequence[str]], pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self._names: dict[str, tuple[str, ...]] = {}
        self._outlets: dict[str, OutletQueue] = {}
        self._entries: dict[str, _Entry] = {}
        self.dropped = 0
        self.retarget(outlets)

    # --- outlets -----------------------------------------------------------------------------------

    def retarget(self, outlets: Mapping[str, Sequence[str]]) -> Outcome:
        """Take the names and outlet ids of a new configuration; what waits for a gone outlet waits for its name."""
        self._names = {name: tuple(ids) for name, ids in outlets.items()}
        wanted = [one for ids in self._names.values() for one in ids]
        self._outlets = {one: self._outlets.get(one) or OutletQueue(one, self.pace) for one in wanted}
        for place in self._outlets.values():
            place.forget()  # what is under way to the old address counts if it lands
        rows: list[Row] = []
        unheard: list[Message] = []
        for entry in list(self._entries.values()):
            lost = entry.pending - self._outlets.keys()
            if lost:
                entry.pending = (entry.pending - lost) | self._for({one.rpartition("/")[0] for one in lost})
            self._queue(entry)
            if not entry.pending:
                rows.append(self._row(entry))
                if not entry.delivered and not entry.fell_back:
                    unheard.append(entry.message)
        return Outcome(rows=tuple(rows), unheard=tuple(unheard))

    def close(self, outlet: str) -> Outcome:
        """An outlet cannot be used at all (a bad URL): nothing waits for it any more."""
        self._names = {name: tuple(one for one in ids if one != outlet) for name, ids in self._names.items()}
        self._outlets.pop(outlet, None)
        rows: list[Row] = []
        unheard: list[Message] = []
        for entry in [entry for entry in self._entries.values() if outlet in entry.pending]:
            self._settle(entry, outlet)
            if not entry.pending and not entry.delivered and not entry.fell_back:
                entry.fell_back = True
                unheard.append(entry.message)
            rows.append(self._row(entry))
        return Outcome(rows=tuple(rows), unheard=tuple(unheard))

    def _for(self, names: Iterable[str]) -> set[str]:
        return {outlet for name in names for outlet in self._names.get(name, ())}

    # --- messages ----------------------------------------------------------------------------------

    def add(self, message: Message) -> Outcome:
        """Take a message; it is unheard at once when nobody is there to get it."""
        pending = self._for(message.to or self._names)
        if not pending:
            return Outcome(unheard=(message,))
        rows = self._make_room()
        entry = self._entries[message.id] = _Entry(message, pending)
        self._queue(entry)
        if message.urgent:
            for outlet in pending:
                self._outlets[outlet].hurry()
        return Outcome(rows=(*rows, self._row(entry)))

    def restore(self, saved: Iterable[SaveMessage]) -> tuple[Row, ...]:
        """Take back what an earlier run could not deliver; returns the rows to drop."""
        drops: list[Row] = []
        for row in saved:
            try:
                message = from_json(Message, row.payload["message"])
                waiting = {str(one) for one in row.payload["pending"]}
            except (KeyError, TypeError, ValueError):
                drops.append(DropMessage(id=row.id))
                continue
            known = waiting & self._outlets.keys()
            pending = known | self._for({one.rpartition("/")[0] for one in waiting - known})
            if pending:
                entry = self._entries[message.id] = _Entry(message, pending)
                self._queue(entry)
            else:
                drops.append(DropMessage(id=row.id))
        return tuple(drops)

    def next(self, outlet: str, now: Instant) -> tuple[Message, ...]:
        """Return what to send there now, () for nothing; it is in flight until `done`."""
        place = self._outlets.get(outlet)
        return () if place is None else place.next(now)

    def wait(self, outlet: str, now: Instant) -> timedelta | None:
        """Return how long until `next` may have something, None while nothing waits or one is in flight."""
        place = self._outlets.get(outlet)
        return None if place is None else place.wait(now)

    def done(self, outlet: str, batch: Sequence[Message], error: str | None, now: Instant) -> Outcome:
        """An attempt ended: `error` None means delivered."""
        place = self._outlets.get(outlet)
        if place is not None:
            place.landed(error, now)
        rows: list[Row] = []
        unheard: list[Message] = []
        for message in batch:
            entry = self._entries.get(message.id)
            if entry is None or outlet not in entry.pending:
                continue
            if error is None:
                entry.delivered = True
                self._settle(entry, outlet)
                rows.append(self._row(entry))
                continue
            entry.failed.add(outlet)
            if not entry.delivered and not entry.fell_back and entry.pending <= entry.failed:
                entry.fell_back = True
                unheard.append(message)
            if now.since(message.made) >= self.pace.give_up:
                self._settle(entry, outlet)
                self.dropped += 1
                rows.append(self._row(entry))
        return Outcome(rows=tuple(rows), unheard=tuple(unheard))

    def late(self, outlet: str, batch: Sequence[Message], now: Instant) -> Outcome:
        """A delivery that had been given up went through after all: do not repeat what is not under way again."""
        place = self._outlets.get(outlet)
        busy = place.in_flight if place is not None else frozenset()
        rows: list[Row] = []
        for message in batch:
            entry = self._entries.get(message.id)
            if entry is not None and outlet in entry.pending and message.id not in busy:
                entry.delivered = True
                self._settle(entry, outlet)
                rows.append(self._row(entry))
        return Outcome(rows=tuple(rows))

    @property
    def empty(self) -> bool:
        """True when everyone has everything."""
        return not self._entries

    def states(self) -> tuple[OutletState, ...]:
        """Return how every outlet stands."""
        return tuple(place.state() for place in self._outlets.values())

    # --- inside ------------------------------------------------------------------------------------

    def _queue(self, entry: _Entry) -> None:
        """Put the message into the queue of each outlet that it waits for."""
        for outlet in entry.pending:
            self._outlets[outlet].put(entry.message)

    def _settle(self, entry: _Entry, outlet: str) -> None:
        """The message waits for this outlet no more."""
        entry.pending.discard(outlet)
        place = self._outlets.get(outlet)
        if place is not None:
            place.remove(entry.message.id)

    def _make_room(self) -> list[Row]:
        """Drop the oldest message that is no page, else the oldest, when there are too many."""
        rows: list[Row] = []
        while len(self._entries) >= self.pace.most:
            calm = (key for key, entry in self._entries.items() if not entry.message.urgent)
            oldest = next(calm, None) or next(iter(self._entries))
            entry = self._entries.pop(oldest)
            for outlet in list(entry.pending):
                self._settle(entry, outlet)
            self.dropped += 1
            rows.append(DropMessage(id=oldest))
        return rows

    def _row(self, entry: _Entry) -> Row:
        if not entry.pending:
            self._entries.pop(entry.message.id, None)
            return DropMessage(id=entry.message.id)
        payload = {"message": to_json(entry.message), "pending": sorted(entry.pending)}
        return SaveMessage(id=entry.message.id, payload=payload)
