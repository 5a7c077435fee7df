"""What is still to be told, to whom, and when: grouping, rate limit, backoff, give-up. Pure: no thread, no clock.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast people are told. Bursts refill by one each `*_every`."""

    group: timedelta = timedelta(seconds=2)  # changes of one incident within this make one message
    digest_at: int = 5  # as many incidents at once make one digest
    burst: int = 20
    burst_every: timedelta = timedelta(seconds=30)
    urgent_burst: int = 10
    urgent_every: timedelta = timedelta(minutes=2)
    first_retry: timedelta = timedelta(seconds=5)
    last_retry: timedelta = timedelta(minutes=10)
    urgent_retry: timedelta = timedelta(seconds=15)
    give_up: timedelta = timedelta(hours=24)
    most: int = 2000  # messages kept at a time


@dataclass(slots=True)
class _Bucket:
    """A token bucket on provable time."""

    size: int
    every: timedelta
    tokens: float
    at: Instant | None = None

    def take(self, now: Instant) -> bool:
        self._fill(now)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def wait(self, now: Instant) -> timedelta:
        """Return how long until there is a token."""
        self._fill(now)
        return self.every * max(0.0, 1 - self.tokens)

    def _fill(self, now: Instant) -> None:
        if self.at is not None:
            passed = max(timedelta(), now.since(self.at))
            self.tokens = min(self.size, self.tokens + passed / self.every)
        self.at = now


@dataclass(slots=True)
class _Entry:
    """A message, the outlets that do not have it yet, and those that failed at it at least once."""

    message: Message
    pending: set[str]
    failed: set[str] = field(default_factory=set)
    delivered: bool = False
    fell_back: bool = False


@dataclass(slots=True)
class _Outlet:
    """One address behind a name."""

    id: str
    bucket: _Bucket
    urgent_bucket: _Bucket
    queue: dict[str, Message] = field(default_factory=dict)  # oldest first
    pages: set[str] = field(default_factory=set)  # those of the queue that are urgent
    failures: int = 0
    last_try: Instant | None = None
    not_before: Instant | None = None
    last_success: Instant | None = None
    error: str = ""
    in_flight: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows from an event: rows for the spool, and messages that only the last sink can still tell."""

    rows: tuple[Row, ...] = ()
    unheard: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletState:
    """How an outlet stands, for `status` and `doctor`; `error` is of the last failed try."""

    id: str
    waiting: int
    failures: int
    last_success: Instant | None
    error: str


class Outbox:
    """Holds messages until each outlet has them. Not thread-safe: the sender locks."""

    def __init__(self, outlets: Mapping[str, Sequence[str]], pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self._names: dict[str, tuple[str, ...]] = {}
        self._outlets: dict[str, _Outlet] = {}
        self._entries: dict[str, _Entry] = {}
        self.dropped = 0
        self.retarget(outlets)

    # --- outlets -----------------------------------------------------------------------------------

    def retarget(self, outlets: Mapping[str, Sequence[str]]) -> Outcome:
        """Take the names and outlet ids of a new configuration; what waits for a gone outlet waits for its name."""
        self._names = {name: tuple(ids) for name, ids in outlets.items()}
        wanted = [one for ids in self._names.values() for one in ids]
        self._outlets = {one: self._outlets.get(one) or self._new(one) for one in wanted}
        for place in self._outlets.values():
            # Another address may stand behind the same id; what is under way to the old one counts if it lands.
            place.in_flight, place.not_before = frozenset(), None
            place.queue, place.pages = {}, set()
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

    def close(self, outlet: str, error: str, now: Instant) -> Outcome:
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

    def _new(self, outlet: str) -> _Outlet:
        pace = self.pace
        return _Outlet(
            id=outlet,
            bucket=_Bucket(pace.burst, pace.burst_every, pace.burst),
            urgent_bucket=_Bucket(pace.urgent_burst, pace.urgent_every, pace.urgent_burst),
        )

    def _for(self, names: Iterable[str]) -> set[str]:
        return {outlet for name in names for outlet in self._names.get(name, ())}

    # --- messages ----------------------------------------------------------------------------------

    def add(self, message: Message, now: Instant) -> Outcome:
        """Take a message; it is unheard at once when nobody is there to get it."""
        pending = self._for(message.to or self._names)
        if not pending:
            return Outcome(unheard=(message,))
        rows = self._make_room()
        entry = self._entries[message.id] = _Entry(message, pending)
        self._queue(entry)
        if message.urgent:
            self._hurry(pending, now)
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
        if (
            place is None
            or place.in_flight
            or (place.not_before is not None and now.since(place.not_before) < timedelta())
        ):
            return ()
        batch = self._urgent_batch(place, now) or self._batch(place, now)
        if batch:
            place.in_flight = frozenset(message.id for message in batch)
            place.last_try = now
        return batch

    def wait(self, outlet: str, now: Instant) -> timedelta | None:
        """Return how long until `next` may have something, None while nothing waits or one is in flight."""
        place = self._outlets.get(outlet)
        if place is None or place.in_flight or not place.queue:
            return None
        backoff = timedelta() if place.not_before is None else -now.since(place.not_before)
        paced, grouped = place.bucket.wait(now), self._group_left(next(iter(place.queue.values())), now)
        if place.pages:
            paced, grouped = min(paced, place.urgent_bucket.wait(now)), timedelta()
        return max(backoff, grouped, paced, timedelta())

    def done(self, outlet: str, batch: Sequence[Message], error: str | None, now: Instant) -> Outcome:
        """An attempt ended: `error` None means delivered."""
        place = self._outlets.get(outlet)
        if place is not None:
            place.in_flight = frozenset()
            self._note(place, error, now)
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
        return tuple(
            OutletState(
                id=one.id,
                waiting=len(one.queue),
                failures=one.failures,
                last_success=one.last_success,
                error=one.error,
            )
            for one in self._outlets.values()
        )

    # --- inside ------------------------------------------------------------------------------------

    def _urgent_batch(self, place: _Outlet, now: Instant) -> tuple[Message, ...]:
        if not place.pages or not place.urgent_bucket.take(now):
            return ()
        pages = [message for message in place.queue.values() if message.urgent]
        if len({message.incident for message in pages}) >= self.pace.digest_at:
            return tuple(pages)
        return tuple(message for message in place.queue.values() if _together(message, pages[0]))

    def _batch(self, place: _Outlet, now: Instant) -> tuple[Message, ...]:
        waiting = place.queue.values()
        due = next(iter(waiting), None)
        if due is None or self._group_left(due, now) > timedelta() or not place.bucket.take(now):
            return ()
        # A crowd, of one moment or because it had to wait for a token or a server, is told in one digest.
        if len({message.incident for message in waiting}) >= self.pace.digest_at:
            return tuple(waiting)
        return tuple(message for message in waiting if _together(message, due))

    def _queue(self, entry: _Entry) -> None:
        """Put the message into the queue of each outlet that it waits for."""
        for outlet in entry.pending:
            place = self._outlets[outlet]
            place.queue[entry.message.id] = entry.message
            if entry.message.urgent:
                place.pages.add(entry.message.id)

    def _settle(self, entry: _Entry, outlet: str) -> None:
        """The message waits for this outlet no more."""
        entry.pending.discard(outlet)
        place = self._outlets.get(outlet)
        if place is not None:
            place.queue.pop(entry.message.id, None)
            place.pages.discard(entry.message.id)

    def _group_left(self, message: Message, now: Instant) -> timedelta:
        return timedelta() if message.urgent else self.pace.group - now.since(message.made)

    def _hurry(self, outlets: Iterable[str], now: Instant) -> None:
        """A page does not sit out a long backoff."""
        for one in outlets:
            place = self._outlets[one]
            if place.not_before is not None and place.last_try is not None:
                soonest = place.last_try.plus(self.pace.urgent_retry)
                if place.not_before.since(soonest) > timedelta():
                    place.not_before = soonest

    def _note(self, place: _Outlet, error: str | None, now: Instant) -> None:
        if error is None:
            place.failures, place.not_before, place.last_success, place.error = 0, None, now, ""
            return
        place.failures += 1
        pause = min(self.pace.first_retry * 2 ** min(place.failures - 1, 16), self.pace.last_retry)
        place.not_before, place.error = now.plus(pause), error

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


def _together(message: Message, lead: Message) -> bool:
    return message.incident == lead.incident and message.title == lead.title
