"""What a match takes, what a mode allows, and how durations read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bandog.domain.model import Fact, Severity
from bandog.domain.policy import FactTest, Match, Policy, Rate, allows, first_match, format_duration
from samples import finding


@pytest.mark.parametrize(
    ("test", "value", "passes"),
    [
        (FactTest(any_of=(94,)), 94, True),
        (FactTest(any_of=(94, 95)), 95, True),
        (FactTest(any_of=(94,)), 95, False),
        (FactTest(any_of=(94,)), "94", False),
        (FactTest(any_of=(1,)), True, False),
        (FactTest(any_of=(True,)), 1, False),
        (FactTest(any_of=("driver",)), None, False),
        (FactTest(minimum=10), 10, True),
        (FactTest(minimum=10), 9, False),
        (FactTest(maximum=10), 11, False),
        (FactTest(minimum=1), True, False),
        (FactTest(minimum=1), "5", False),
        (FactTest(glob="uvm_*"), "uvm_va_space_destroy", True),
        (FactTest(glob="uvm_*"), "nv_uvm_", False),
        (FactTest(glob="*"), 5, False),
        (FactTest(any_of=(5, 50), minimum=10), 5, False),
    ],
)
def test_a_fact_passes_or_not(test: FactTest, value: Fact | None, passes: bool) -> None:
    assert test.passes(value) is passes


def test_a_match_needs_kind_subject_severity_and_every_fact() -> None:
    match = Match(
        kinds=("nvidia.*",),
        subjects=("gpu:*",),
        severity=Severity.ERROR,
        facts={"xid": FactTest(any_of=(94,)), "row": FactTest(minimum=1)},
    )
    assert match.takes(finding(facts={"xid": 94, "row": 1}))
    assert not match.takes(finding(facts={"xid": 94}))
    assert not match.takes(finding(facts={"xid": 94, "row": 1}, kind="gpu.lost"))
    assert not match.takes(finding(facts={"xid": 94, "row": 1}, subject="host"))
    assert not match.takes(finding(facts={"xid": 94, "row": 1}, severity=Severity.WARNING))


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        (Match(kinds=("nvidia.*",)), Match(kinds=("nvidia.xid",)), True),
        (Match(kinds=("nvidia.*",)), Match(kinds=("nvidia.*",), subjects=("gpu:x",)), True),
        (Match(kinds=("nvidia.xid",)), Match(kinds=("nvidia.xid", "gpu.lost")), False),
        (Match(kinds=("??",)), Match(kinds=("x*",)), False),
        (Match(kinds=("a",), subjects=("gpu:*",)), Match(kinds=("a",)), False),
        (Match(kinds=("a",), subjects=("gpu:*",)), Match(kinds=("a",), subjects=("gpu:x",)), True),
        (Match(kinds=("a",), severity=Severity.ERROR), Match(kinds=("a",)), False),
        (Match(kinds=("a",), severity=Severity.ERROR), Match(kinds=("a",), severity=Severity.WARNING), False),
        (Match(kinds=("a",), severity=Severity.ERROR), Match(kinds=("a",), severity=Severity.CRITICAL), True),
    ],
)
def test_a_match_covers_another_or_cannot_tell(wide: Match, narrow: Match, covers: bool) -> None:
    assert wide.covers(narrow) is covers


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ({}, {"xid": FactTest(any_of=(94,))}, True),
        ({"xid": FactTest(any_of=(94, 95))}, {"xid": FactTest(any_of=(94,))}, True),
        ({"xid": FactTest(any_of=(94,))}, {"xid": FactTest(any_of=(94, 95))}, False),
        ({"xid": FactTest(minimum=90)}, {"xid": FactTest(any_of=(94,))}, True),
        ({"xid": FactTest(minimum=90)}, {"xid": FactTest(minimum=90)}, True),
        ({"xid": FactTest(minimum=90)}, {"xid": FactTest(minimum=80)}, False),
        ({"xid": FactTest(any_of=(94,))}, {}, False),
    ],
)
def test_facts_cover_others_or_it_cannot_be_told(
    wide: dict[str, FactTest], narrow: dict[str, FactTest], covers: bool
) -> None:
    assert Match(kinds=("a",), facts=wide).covers(Match(kinds=("a",), facts=narrow)) is covers


def test_the_first_in_reading_order_wins() -> None:
    policies = [Policy(name=name, match=Match(kinds=("nvidia.xid",))) for name in ("a", "b")]
    assert first_match(policies, finding()) is policies[0]
    assert first_match(policies, finding(kind="x")) is None


def test_what_a_mode_allows() -> None:
    assert allows(None, "restart") and allows("enforce", "restart") and allows(("restart",), "restart")
    assert not allows("observe", "restart") and not allows(("reboot",), "restart")


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45s"), (600, "10m"), (5400, "1h30m"), (86400 * 7, "7d"), (0.5, "0.5s"), (0, "0s")]
)
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


def test_a_rate_reads_as_it_is_written() -> None:
    assert str(Rate(count=3, per=timedelta(days=7))) == "3 per 7d"
