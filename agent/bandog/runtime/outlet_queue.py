"""What waits for one outlet, and when it may go there: grouping, rate limit, backoff. Pure: no thread, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..domain.model import Instant
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletState:
    """How an outlet stands, for `status` and `doctor`; `error` is of the last failed try."""

    id: str
    waiting: int
    failures: int
    last_success: Instant | None
    error: str


class OutletQueue:
    """The messages for one address, oldest first, and how it fares.

    At most one batch is in flight, from `next` until `landed`; `in_flight` holds the ids of its messages.
    """

    def __init__(self, outlet: str, pace: Pace) -> None:
        self.in_flight: frozenset[str] = frozenset()
        self._id = outlet
        self._pace = pace
        self._bucket = _Bucket(pace.burst, pace.burst_every, pace.burst)
        self._urgent_bucket = _Bucket(pace.urgent_burst, pace.urgent_every, pace.urgent_burst)
        self._waiting: dict[str, Message] = {}
        self._pages: set[str] = set()  # those that wait and are urgent
        self._failures = 0
        self._last_try: Instant | None = None
        self._not_before: Instant | None = None
        self._last_success: Instant | None = None
        self._error = ""

    def put(self, message: Message) -> None:
        """Let the message wait for this outlet."""
        self._waiting[message.id] = message
        if message.urgent:
            self._pages.add(message.id)

    def remove(self, message: str) -> None:
        """The message of that id waits no more."""
        self._waiting.pop(message, None)
        self._pages.discard(message)

    def forget(self) -> None:
        """Another address may stand behind the same id: nothing waits, nothing is under way, no backoff holds."""
        self.in_flight, self._not_before = frozenset(), None
        self._waiting, self._pages = {}, set()

    def next(self, now: Instant) -> tuple[Message, ...]:
        """Return what to send now, () for nothing; it is in flight until `landed`."""
        if self.in_flight or (self._not_before is not None and now.since(self._not_before) < timedelta()):
            return ()
        batch = self._urgent_batch(now) or self._batch(now)
        if batch:
            self.in_flight = frozenset(message.id for message in batch)
            self._last_try = now
        return batch

    def wait(self, now: Instant) -> timedelta | None:
        """Return how long until `next` may have something, None while nothing waits or one is in flight."""
        if self.in_flight or not self._waiting:
            return None
        backoff = timedelta() if self._not_before is None else -now.since(self._not_before)
        paced, grouped = self._bucket.wait(now), self._group_left(next(iter(self._waiting.values())), now)
        if self._pages:
            paced, grouped = min(paced, self._urgent_bucket.wait(now)), timedelta()
        return max(backoff, grouped, paced, timedelta())

    def landed(self, error: str | None, now: Instant) -> None:
        """An attempt ended: `error` None means delivered, else the next one has to wait."""
        self.in_flight = frozenset()
        if error is None:
            self._failures, self._not_before, self._last_success, self._error = 0, None, now, ""
            return
        self._failures += 1
        pause = min(self._pace.first_retry * 2 ** min(self._failures - 1, 16), self._pace.last_retry)
        self._not_before, self._error = now.plus(pause), error

    def hurry(self) -> None:
        """A page does not sit out a long backoff."""
        if self._not_before is not None and self._last_try is not None:
            soonest = self._last_try.plus(self._pace.urgent_retry)
            if self._not_before.since(soonest) > timedelta():
                self._not_before = soonest

    def state(self) -> OutletState:
        """Return how it stands."""
        return OutletState(
            id=self._id,
            waiting=len(self._waiting),
            failures=self._failures,
            last_success=self._last_success,
            error=self._error,
        )

    def _urgent_batch(self, now: Instant) -> tuple[Message, ...]:
        if not self._pages or not self._urgent_bucket.take(now):
            return ()
        pages = [message for message in self._waiting.values() if message.urgent]
        if self._is_crowd(pages):
            return tuple(pages)
        return tuple(message for message in self._waiting.values() if _together(message, pages[0]))

    def _batch(self, now: Instant) -> tuple[Message, ...]:
        waiting = list(self._waiting.values())
        if not waiting or self._group_left(waiting[0], now) > timedelta() or not self._bucket.take(now):
            return ()
        # A crowd, of one moment or because it had to wait for a token or a server, is told in one digest.
        if self._is_crowd(waiting):
            return tuple(waiting)
        return tuple(message for message in waiting if _together(message, waiting[0]))

    def _is_crowd(self, messages: Sequence[Message]) -> bool:
        return len({message.incident for message in messages}) >= self._pace.digest_at

    def _group_left(self, message: Message, now: Instant) -> timedelta:
        return timedelta() if message.urgent else self._pace.group - now.since(message.made)


def _together(message: Message, lead: Message) -> bool:
    return message.incident == lead.incident and message.title == lead.title
