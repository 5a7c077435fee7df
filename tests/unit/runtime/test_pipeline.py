"""A record goes to who asked for it, and what comes of it goes to people, store and executor at once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from bandog import Finding, LogDetector, Record, Severity
from bandog.domain.changes import ActionTraits
from bandog.domain.engine import Engine
from bandog.domain.model import Instant, Request
from bandog.domain.policy import Match, Policy, Step
from bandog.runtime.guard import Guard
from bandog.runtime.pipeline import Outlets, Pipeline
from bandog.store.rows import AddEvent, SaveCursor, SavedRequest, SaveIncident
from bandog.testing import FakeClock


class Odd(LogDetector):
    """Does what its line says."""

    name = "odd"
    emits = {"test.fault": {}}  # noqa: RUF012  # a class attribute of the plugin interface
    needles = (b"odd:",)

    def feed(self, record: Record) -> Iterable[Finding]:
        """Raise, open, or state a fault."""
        if "raise" in record.text:
            raise RuntimeError("no good")
        self.open = "open" in record.text
        return [Finding.of(record, kind="test.fault", subject="gpu:0000:01:00.0", severity=Severity.ERROR)]

    def flush(self, now: Instant) -> Iterable[Finding]:
        """Close."""
        self.open = False
        return []


class Harness:
    """A pipeline whose outlets keep what they are given."""

    def __init__(self, detector: Odd | None = None) -> None:
        self.clock = FakeClock()
        self.rows: list[Any] = []
        self.told: list[Any] = []
        self.submitted: list[Request] = []
        self.unplugged: list[str] = []
        self.taken: set[str] = set()
        policies = (
            Policy(name="fault", match=Match(kinds=("test.fault",)), notify=("oncall",), steps=(Step(do="restart"),)),
            Policy(name="agent", match=Match(kinds=("agent.*",)), notify=("oncall",), resolve="quiet"),
        )
        self.detector = detector or Odd()
        self.pipeline = Pipeline(
            Engine(policies, {"restart": ActionTraits(per_service=True)}),
            [self.detector],
            Outlets(
                commit=lambda *rows: self.rows.append(rows),
                tell=self.told.append,
                submit=self.submitted.append,
                drop=lambda request, why: None,
                announce=lambda change: None,
                annotate=lambda finding: Finding(**{**_fields(finding), "services": ("qwen",)}),
                cursor=lambda: SaveCursor(source="kmsg", boot_id="b", position="7"),
                take=lambda identity: identity not in self.taken,
                unplug=self.unplugged.append,
            ),
            self.clock.now,
            Guard(timedelta(seconds=5)),
        )

    def feed(self, text: str) -> Record:
        record = Record(text=text, at=self.clock.now(), source="kmsg", live=True)
        self.pipeline.feed(record)
        return record


def _fields(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in finding.__dataclass_fields__}


def test_incident_timeline_request_and_cursor_are_one_commit() -> None:
    host = Harness()
    host.feed("odd: fault")
    assert len(host.rows) == 1
    kinds = {type(row) for row in host.rows[0]}
    assert {SaveIncident, AddEvent, SavedRequest, SaveCursor} <= kinds
    assert [one.service for one in host.submitted] == ["qwen"]
    assert host.told


def test_a_record_that_nobody_asked_for_costs_nothing_and_says_nothing() -> None:
    host = Harness()
    host.feed("something else")
    assert host.rows == []


def test_an_open_detector_gets_every_record_until_it_closes() -> None:
    host = Harness()
    host.feed("odd: open")
    assert host.pipeline.is_open()
    host.pipeline.tick()
    assert not host.pipeline.is_open()


def test_a_detector_that_raises_is_taken_out_and_named_and_the_rest_goes_on() -> None:
    host = Harness()
    host.feed("odd: raise")
    assert host.unplugged == ["odd"]
    assert host.pipeline.detectors == []
    said = [row.incident for rows in host.rows for row in rows if isinstance(row, SaveIncident)]
    assert [(one.kind, one.facts["plugin"]) for one in said] == [("agent.plugin-broken", "odd")]
    host.feed("odd: fault")
    assert host.submitted == []


def test_what_was_taken_in_before_a_restart_is_not_taken_in_again() -> None:
    host = Harness()
    record = Record(text="odd: fault", at=host.clock.now(), source="kmsg", live=True)
    host.taken.add(record.identity)
    host.pipeline.feed(record)
    assert host.rows == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()], ids=repr)
def test_nothing_that_a_detector_raises_ends_the_agent(error: BaseException) -> None:
    class Falling(Odd):
        def feed(self, record: Record) -> Iterable[Finding]:
            raise error

    host = Harness(Falling())
    host.feed("odd: first")
    host.feed("odd: second")
    assert host.unplugged == ["odd"]


def test_a_detector_that_states_what_is_no_finding_is_taken_out_before_the_engine_sees_it() -> None:
    class Garbled(Odd):
        def feed(self, record: Record) -> Any:
            return [1, None]

    host = Harness(Garbled())
    host.feed("odd: garbage")
    assert host.unplugged == ["odd"]
    assert {one.incident.kind for one in host.told} == {"agent.plugin-broken"}


def test_a_detector_whose_open_raises_is_taken_out_and_named() -> None:
    class Property(Odd):
        def __getattribute__(self, name: str) -> Any:
            if name == "open":
                raise ZeroDivisionError
            return super().__getattribute__(name)

    host = Harness(Property())
    assert not host.pipeline.is_open()
    host.pipeline.tick()
    assert host.unplugged == ["odd"]
