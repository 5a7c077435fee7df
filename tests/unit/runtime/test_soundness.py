"""What is no finding never reaches the engine, whatever shape a plugin gives it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from bandog import Finding, Severity, Unknown
from bandog.runtime.soundness import MOST_FINDINGS, MOST_TEXT, Unsound, answers_of, findings_of
from bandog.testing import FakeClock

GOOD = Finding(
    kind="test.fault",
    subject="gpu:0000:01:00.0",
    severity=Severity.ERROR,
    at=FakeClock().now(),
    facts={"xid": 94, "text": "x", "ratio": 0.5, "usable": True, "stack": ("a", "b"), "links": (1, 2)},
    services=("qwen",),
)


def test_a_finding_whose_fields_are_of_their_types_passes_as_it_is() -> None:
    assert findings_of([GOOD]) == [GOOD]
    assert answers_of([GOOD, Unknown(kind="test.fault")]) == [GOOD, Unknown(kind="test.fault")]


@pytest.mark.parametrize("answer", [[1], [None], ["text"], [{}], [Unknown(kind="test.fault")]], ids=repr)
def test_what_is_no_finding_is_refused(answer: list[object]) -> None:
    with pytest.raises(Unsound, match="is no Finding"):
        findings_of(answer)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", 5),
        ("kind", ["test.fault"]),
        ("subject", None),
        ("severity", "error"),
        ("at", None),
        ("raised", None),
        ("services", ["qwen"]),
        ("services", ("qwen", None)),
        ("burst", ["a"]),
        ("window", 5),
        ("record", ["u"]),
        ("aspect", None),
    ],
)
def test_a_field_of_another_type_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(Unsound, match=rf"Finding\.{name}"):
        findings_of([dataclasses.replace(GOOD, **{name: value})])


@pytest.mark.parametrize(
    "facts",
    [{"xid": [94]}, {"o": object()}, {5: "five"}, {"t": ("a", ["b"])}, {"n": float("nan")}, {"h": "x" * MOST_TEXT}],
    ids=lambda facts: str(next(iter(facts))),
)
def test_facts_that_are_none_or_too_big_are_refused(facts: dict[Any, Any]) -> None:
    with pytest.raises(Unsound, match="fact"):
        answers_of([dataclasses.replace(GOOD, facts=facts)])


def test_findings_without_end_are_refused_and_not_collected() -> None:
    endless = itertools.repeat(GOOD)
    with pytest.raises(Unsound, match=f"more than {MOST_FINDINGS}"):
        findings_of(endless)


def test_an_unknown_without_names_is_refused() -> None:
    with pytest.raises(Unsound):
        answers_of([Unknown(kind=None)])  # type: ignore[arg-type]  # what a plugin without types may do
