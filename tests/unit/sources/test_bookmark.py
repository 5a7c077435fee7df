"""How far the kernel's log was read, as stored text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.sources.bookmark import Bookmark, Done, Neighbour

BOOT = "ab" * 16


def a_mark(**changes: object) -> Bookmark:
    values = {
        "boot_id": BOOT,
        "last": Neighbour(seq=7, usec=1234, digest="d1"),
        "upto": 9,
        "shift": -250,
        "done": ("x", "x", "y"),
    }
    return Bookmark(**(values | changes))  # type: ignore[arg-type]  # a test's shorthand


def test_comes_back_from_its_text() -> None:
    assert Bookmark.parse(a_mark().to_text(), boot_id=BOOT) == a_mark()


def test_of_another_boot_counts_for_nothing() -> None:
    assert Bookmark.parse(a_mark().to_text(), boot_id="cd" * 16) is None


@pytest.mark.parametrize(
    "text",
    ["", "7", "null", "[]", "{}", '{"boot_id": 3}', "{" * 5000, a_mark(shift=10**30).to_text()],
)
def test_broken_text_counts_for_nothing(text: str) -> None:
    assert Bookmark.parse(text, boot_id=BOOT) is None


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_arbitrary_values_never_raise(value: object) -> None:
    text = json.dumps({"boot_id": BOOT, "last": value, "shift": value, "done": value, "upto": value})
    Bookmark.parse(text, boot_id=BOOT)


@given(st.text(max_size=200))
def test_arbitrary_text_never_raises(text: str) -> None:
    Bookmark.parse(text, boot_id=BOOT)


def test_a_finding_is_a_repeat_as_often_as_it_was_taken_in_before() -> None:
    done = Done(("x", "x", "y"))
    assert [done.is_repeat("x") for _ in range(3)] == [True, True, False]
    assert not done.is_repeat("z")
    assert done.is_repeat("y")
    assert done.all() == ("x", "x", "y")
