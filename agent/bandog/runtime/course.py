"""One request on its way from the gates to its end: what the executor knows of it, and its row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..domain.codec import to_json
from ..domain.model import EMPTY, Instant, Request, Result, StepState
from ..store.rows import SavedRequest

FRESH = timedelta(minutes=5)
"""A finding older than this may be told, never acted on (DESIGN section 7)."""
_OWN = "_executor"


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended, and why in one sentence."""

    state: StepState
    why: str
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(slots=True, eq=False)
class Course:
    """One request under way. `attempts` counts runs that changed nothing; `resumed` runs begun again
    after a restart of the agent."""

    request: Request
    state: StepState = StepState.WAITING
    why: str = ""
    started: Instant | None = None
    result: Result | None = None
    proving: Instant | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
    resumed: int = 0
    dropped: str | None = None
    blocked: Instant | None = None
    reasons: set[str] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    acting: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, saved: SavedRequest) -> Course:
        """Take up a request where the store says that it stood."""
        notes = dict(saved.notes)
        own = notes.pop(_OWN, None)
        return cls(
            request=saved.request,
            state=saved.state,
            why=saved.why,
            started=saved.started,
            result=saved.result,
            proving=saved.proving,
            notes=notes,
            attempts=_count(own, "attempts"),
            resumed=_count(own, "resumed"),
        )

    def row(self) -> SavedRequest:
        """Return the row that says how it stands now."""
        own = {"attempts": self.attempts, "resumed": self.resumed}
        notes = {**self.notes, _OWN: own} if any(own.values()) else self.notes
        return SavedRequest(
            request=self.request,
            state=self.state,
            why=self.why,
            started=self.started,
            result=self.result,
            proving=self.proving,
            notes=dict(notes),
        )

    def interrupted(self) -> Result:
        """Return the result of a run whose outcome nobody saw: done, as far as anyone may assume."""
        return Result.done(
            "interrupted",
            interrupted=True,
            started=to_json(self.started),
            notes=dict(self.notes),
        )

    def stale(self, now: Instant) -> str | None:
        """Return why a request that was still waiting when the agent ended is not taken up again."""
        found = self.request.found_at
        if found.boot_id != now.boot_id:
            return "its finding is of an earlier boot"
        if now.since(found) > FRESH and self.request.with_.get("when") != "window":
            return "its finding is older than 5 minutes"
        return None


def _count(own: Any, name: str) -> int:
    """Read a counter of ours; one that a plugin's note has overwritten starts anew."""
    value = own.get(name) if isinstance(own, Mapping) else None
    return value if isinstance(value, int) else 0
