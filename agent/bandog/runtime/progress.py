"""How the requests under way stand, for the store and for the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ..domain.changes import StepReport
from ..domain.model import EMPTY, StepState
from ..store.rows import Row
from ..store.store import Store
from .course import Course

MAX_REASONS = 20
"""Reasons of one request that are reported; a gate whose words change each time must not fill the record."""


class Progress:
    """Keeps and reports each step of a request. `report` carries StepReports to the engine."""

    def __init__(self, store: Store, report: Callable[[StepReport], None]) -> None:
        self._store = store
        self._report = report

    def save(self, course: Course, *rows: Row) -> asyncio.Future[None]:
        """Hand the request's row to the store, with what belongs to it; the future is resolved once it is kept."""
        return self._store.commit(course.row(), *rows)

    def report(self, course: Course, state: StepState, why: str = "", facts: Mapping[str, Any] = EMPTY) -> None:
        """Tell the engine."""
        self._report(StepReport(request=course.request.id, state=state, why=why, facts=facts))

    def waits(self, course: Course, reason: str) -> None:
        """Say once that it waits, and for what."""
        if reason in course.reasons or len(course.reasons) >= MAX_REASONS:
            return
        course.reasons.add(reason)
        course.why = reason
        if course.state is StepState.WAITING:
            self.save(course)
        self.report(course, StepState.WAITING, reason)

    def why_stuck(self) -> str:
        """Return why nothing is kept, as far as the disk says."""
        return self._store.why_stuck() or "no answer"
