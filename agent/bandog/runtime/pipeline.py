"""The way of one record: detectors → finding → locate → engine → changes → people, store, executor.

Everything here runs on the loop and in memory. Telling people and writing to the store go on side
by side; neither waits for the other (DESIGN section 4).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from ..domain import subjects
from ..domain.changes import (
    Change,
    FindingSeen,
    IncidentChanged,
    Input,
    Remembered,
    RequestDropped,
    RequestMade,
    Tick,
)
from ..domain.codec import to_json
from ..domain.model import Finding, Instant, Record, Request, Severity, StepState
from ..plugin import LogDetector
from ..sources.prefilter import Prefilter
from ..store.rows import AddEvent, Remember, Row, SaveCursor, SavedRequest, SaveIncident
from .guard import Guard
from .soundness import findings_of

log = logging.getLogger(__name__)


class Engine(Protocol):
    """The part of the engine that the pipeline calls."""

    def apply(self, event: Input, now: Instant) -> tuple[Change, ...]:
        """Take one input and return what changes."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Outlets:
    """Where changes go; each returns at once."""

    commit: Callable[..., object]
    tell: Callable[[IncidentChanged], None]
    submit: Callable[[Request], None]
    drop: Callable[[str, str], None]
    announce: Callable[[IncidentChanged], None]
    annotate: Callable[[Finding], Finding]
    cursor: Callable[[], SaveCursor | None]
    take: Callable[[str], bool]
    unplug: Callable[[str], None]


class Pipeline:
    """Carries records and inputs through detectors and the engine, and the changes to the outlets."""

    def __init__(
        self,
        engine: Engine,
        detectors: Sequence[LogDetector],
        outlets: Outlets,
        now: Callable[[], Instant],
        guard: Guard,
    ) -> None:
        self.engine = engine
        self.detectors = list(detectors)
        self.counts: dict[str, int] = {"records": 0, "findings": 0}
        self._out = outlets
        self._now = now
        self._guard = guard
        self._wanted = {one.name: Prefilter(one.needles) for one in self.detectors}

    def is_open(self) -> bool:
        """True while some detector wants every record."""
        return any(self._wants_all(one) for one in tuple(self.detectors))

    def feed(self, record: Record) -> None:
        """Give one record to the detectors that asked for it."""
        self.counts["records"] += 1
        for detector in tuple(self.detectors):
            if self._wanted[detector.name].wants_text(record.text) or self._wants_all(detector):
                self._call(detector, partial(detector.feed, record), record.usec or 0)

    def flush(self) -> None:
        """Once a second: let open detectors close what has ended."""
        now = self._now()
        for detector in tuple(self.detectors):
            if self._wants_all(detector):
                self._call(detector, partial(detector.flush, now))

    def _wants_all(self, detector: LogDetector) -> bool:
        try:
            return bool(detector.open)
        except BaseException as error:  # it may be a property: a plugin at work, see `_call`
            self._unplug(detector, error)
            return False

    def _call(self, detector: LogDetector, work: Callable[[], Iterable[Finding]], stamp: int = 0) -> None:
        try:
            with self._guard.watch(detector.name, stamp):
                findings = findings_of(work())
        # The second of the three doors where everything is caught: a plugin at work on the loop. SystemExit
        # too: it would end the agent, and each start would read the record that caused it again.
        except BaseException as error:
            self._unplug(detector, error)
            return
        for finding in findings:
            if finding.record is not None and not self._out.take(finding.record):
                continue  # it was taken in before a restart
            self.found(dataclasses.replace(finding, detector=finding.detector or detector.name))

    def _unplug(self, detector: LogDetector, error: BaseException) -> None:
        why = f"{type(error).__name__}: {error}"
        log.error("detector taken out plugin=%s why=%s", detector.name, why)
        self.detectors.remove(detector)
        self._out.unplug(detector.name)
        self.say(
            "agent.plugin-broken",
            subjects.plugin(detector.name),
            Severity.ERROR,
            plugin=detector.name,
            why=why,
        )

    def say(
        self, kind: str, subject: str, severity: Severity, *, raised: bool = True, **facts: str | int | None
    ) -> None:
        """State a fact about the agent itself."""
        clean = {name: value for name, value in facts.items() if value is not None}
        self.found(
            Finding(
                kind=kind,
                subject=subject,
                severity=severity,
                at=self._now(),
                detector="agent",
                raised=raised,
                facts=clean,
                live=True,
            )
        )

    def found(self, finding: Finding) -> None:
        """Take a finding from whatever detector, probe or part of the agent."""
        self.counts["findings"] += 1
        self.apply(FindingSeen(finding=self._out.annotate(finding)))

    def tick(self) -> None:
        """Once a second: flush detectors and let time pass in the engine."""
        self.flush()
        self.apply(Tick())

    def apply(self, event: Input) -> None:
        """Put one input into the engine and carry its changes out."""
        now = self._now()
        changes = self.engine.apply(event, now)
        if not changes:
            return
        for change in changes:
            if isinstance(change, IncidentChanged) and change.tell:
                self._out.tell(change)
        rows = [row for change in changes for row in _rows(change, now)]
        cursor = self._out.cursor() if isinstance(event, FindingSeen) else None
        if cursor is not None:
            rows.append(cursor)
        if rows:
            self._out.commit(*rows)
        for change in changes:
            if isinstance(change, RequestMade):
                self._out.submit(change.request)
            elif isinstance(change, RequestDropped):
                self._out.drop(change.request, change.why)
            elif isinstance(change, IncidentChanged):
                self._out.announce(change)


def _rows(change: Change, now: Instant) -> Iterable[Row]:
    if isinstance(change, IncidentChanged):
        yield SaveIncident(incident=change.incident)
        data = dict(change.facts)
        if change.action:
            data["action"] = change.action
        if change.end is not None:
            data["end"] = change.end.value
        if change.finding is not None:
            data["finding"] = to_json(change.finding)
        yield AddEvent(
            incident=change.incident.id,
            at=change.finding.at if change.finding is not None else now,
            what=change.what,
            why=change.why,
            data=data,
        )
    elif isinstance(change, RequestMade):
        yield SavedRequest(request=change.request, state=StepState.WAITING)
    elif isinstance(change, Remembered):
        yield Remember(key=change.key, value=change.value)
