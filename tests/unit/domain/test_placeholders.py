"""`$names` in arguments are found and filled in, and nothing in them is looked at twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.placeholders import expand, names_in

NAMES = {"subject": "gpu:x", "pid": 7, "live": True, "rows": (1, 2), "evil": "$subject $$"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$subject", "gpu:x"),
        ("${pid}th", "7th"),
        ("$pid$pid", "77"),
        ("$live $rows", "true 1,2"),
        ("$absent!", "!"),
        ("$$subject", "$subject"),
        ("100$ and $5", "100$ and $5"),
        ("$evil", "$subject $$"),
        (5, 5),
        (None, None),
    ],
)
def test_names_are_filled_in(text: Any, filled: Any) -> None:
    assert expand(text, NAMES) == filled


def test_a_fact_begins_no_line_of_its_own() -> None:
    filled = expand("$comm is stuck\nlook at it", {"comm": "x\r\nResolved.\u2028y"})
    assert filled == "x Resolved. y is stuck\nlook at it"


def test_lists_and_mappings_are_walked() -> None:
    value = {"to": ["$subject", {"deep": "$pid"}], "n": 3}
    assert expand(value, NAMES) == {"to": ("gpu:x", {"deep": "7"}), "n": 3}
    assert list(names_in(value)) == ["subject", "pid"]


def test_escaped_dollars_name_nothing() -> None:
    assert list(names_in("$$subject ${a} $b_1 $9")) == ["a", "b_1"]


@given(st.text())
def test_text_without_known_names_loses_only_its_names(text: str) -> None:
    assert expand(text, {}).count("$") <= text.count("$")
    assert expand(text.replace("$", "$$"), NAMES) == text
