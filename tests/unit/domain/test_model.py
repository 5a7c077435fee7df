"""Instants prove no more time than has passed; values go to JSON and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from chronicle import START
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.codec import from_json, to_json
from bandog.domain.model import Finding, Incident, IncidentState, Instant, Record, Request, Result, Severity, StepState

HOUR = timedelta(hours=1)


def other_boot(uptime: timedelta, utc: timedelta, *, synced: bool) -> Instant:
    return Instant(boot_id="boot-2", boottime=uptime, utc=START.utc + utc, synced=synced)


class TestInstant:
    def test_within_a_boot_the_boot_clock_counts_whatever_the_wall_clock_says(self) -> None:
        later = Instant(
            boot_id="boot-1",
            boottime=START.boottime + HOUR,
            utc=datetime(1999, 1, 1, tzinfo=UTC),
            synced=True,
        )
        assert later.since(START) == HOUR

    def test_across_boots_a_synchronised_wall_clock_counts(self) -> None:
        assert other_boot(timedelta(minutes=1), HOUR, synced=True).since(START) == HOUR

    def test_across_boots_without_one_only_the_uptime_is_proved(self) -> None:
        assert other_boot(timedelta(minutes=1), 9000 * HOUR, synced=False).since(START) == timedelta(minutes=1)
        unsure = Instant(boot_id="boot-1", boottime=HOUR, utc=START.utc, synced=False)
        assert other_boot(timedelta(minutes=1), HOUR, synced=True).since(unsure) == timedelta(minutes=1)
        assert other_boot(timedelta(minutes=1), -9000 * HOUR, synced=True).since(START) == timedelta(minutes=1)


def test_severities_are_ordered() -> None:
    assert Severity.INFO < Severity.WARNING < Severity.ERROR < Severity.CRITICAL
    assert Severity.ERROR <= Severity.ERROR


def test_absent_facts_are_left_out() -> None:
    record = Record(text="x", at=START, source="kmsg", live=True, usec=7)
    finding = Finding.of(
        record, kind="nvidia.xid", subject="host", severity=Severity.INFO, facts={"a": None, "b": "", "c": 0}
    )
    assert dict(finding.facts) == {"c": 0}
    assert finding.live and finding.record == record.identity


def test_the_same_line_has_the_same_identity_from_every_source() -> None:
    one = Record(text="NVRM: Xid", at=START, source="kmsg", usec=7, seq=1)
    other = Record(text="NVRM: Xid", at=START.plus(HOUR), source="journal", usec=7)
    assert one.identity == other.identity
    assert Record(text="NVRM: Xid\udcff", at=START, source="kmsg").identity != one.identity


FACTS = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.one_of(st.text(min_size=1), st.integers(), st.booleans(), st.floats(allow_nan=False)),
    max_size=3,
)


@given(FACTS, st.sampled_from(IncidentState), st.sampled_from(StepState), st.none() | st.just(START))
def test_values_go_to_json_and_back(
    facts: dict[str, object], state: IncidentState, step: StepState, ended: Instant | None
) -> None:
    incident = Incident(
        id=1,
        policy="p",
        subject="host",
        kind="k",
        severity=Severity.ERROR,
        state=state,
        step_state=step,
        opened=START,
        last=START,
        facts=facts,  # type: ignore[arg-type]  # hypothesis' values are facts, mypy cannot tell
        services=("a", "b"),
        ended=ended,
    )
    request = Request(
        id="1.1",
        incident=1,
        policy="p",
        step=0,
        action="restart",
        subject="host",
        kind="k",
        with_={"to": ["a"]},
        found_at=START,
        made_at=START,
    )
    for value in (incident, request, Result.done("x", n=1)):
        assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize(
    ("kind", "data"), [(timedelta, 1e300), (timedelta, float("inf")), (datetime, "0001-01-01T00:00:00+05:00")]
)
def test_a_time_that_no_clock_shows_does_not_fit(kind: type[Any], data: Any) -> None:
    with pytest.raises(ValueError):
        from_json(kind, data)
