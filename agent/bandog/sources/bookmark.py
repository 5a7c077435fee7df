"""How far the kernel's log was read, as it is stored: the record to go on after, and what is already done.

While a detector holds an open block, the bookmark stays before it, so that a crash loses no half
block. What was found behind the bookmark in the meantime stands in `done`, so that reading it again
finds nothing twice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from ..domain.codec import from_json, to_json

# A year of drift: more is no drift, and would overflow a date.
_MOST_SHIFT = 365 * 86400 * 1_000_000


def text_digest(text: str) -> str:
    """Return a short hash by which a record's text is recognised in the journal."""
    return hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A record next to a gap: its number where known, its kernel stamp, and the hash of its text."""

    seq: int | None
    usec: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """The record of boot `boot_id` to go on after; all up to number `upto` had been read by then.

    `shift` is the kernel clock's measured drift in microseconds. `done` holds the identities of the
    records between that gave findings; one that gave two stands twice.
    """

    boot_id: str
    last: Neighbour
    upto: int = 0
    shift: int = 0
    done: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return it as the store keeps it in `SaveCursor.position`."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, *, boot_id: str) -> Bookmark | None:
        """Return the bookmark in `text`, or None when it is none or belongs to another boot."""
        try:
            mark = from_json(cls, json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return None
        fits = mark.boot_id == boot_id and mark.last.seq is not None and abs(mark.shift) < _MOST_SHIFT
        return mark if fits else None


class Done:
    """Which findings behind the bookmark were taken in already, before a restart and since."""

    LIMIT = 256
    """So many may stand behind the bookmark; past it the bookmark moves on rather than forget one."""

    def __init__(self, before: tuple[str, ...] = ()) -> None:
        self._before = Counter(before)
        self._since: list[str] = list(before)

    def is_repeat(self, identity: str) -> bool:
        """Return whether a finding of the record `identity` was taken in before the restart; uses it up."""
        if self._before[identity] <= 0:
            return False
        self._before[identity] -= 1
        return True

    def add(self, identity: str) -> None:
        """Remember that a finding of the record `identity` has been taken in."""
        self._since.append(identity)

    def clear(self) -> None:
        """Forget what was taken in since the restart: the bookmark has passed it."""
        self._since.clear()

    @property
    def full(self) -> bool:
        """True when no more can be remembered."""
        return len(self._since) >= self.LIMIT

    def all(self) -> tuple[str, ...]:
        """Return every identity, oldest first."""
        return tuple(self._since)
