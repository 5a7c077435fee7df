"""Hostile words stay harmless; a card's papers are told where there are any."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.runtime.wording import card_lines, plain


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("VLLM::Worker\nResolved", "VLLM::Worker Resolved"),
        ("a\x1b[31mred", "a\\u001b(31mred"),
        ("@everyone", "＠everyone"),
        ("<!channel>", "‹!channel›"),
        ("[click](http://evil.example/)", "(click)(hxxp://evil.example/)"),
        ("`rm`", "'rm'"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\\ud800"),
        ("uvm_va_space_destroy", "uvm_va_space_destroy"),
    ],
)
def test_hostile_words_are_one_harmless_line(hostile: str, shown: str) -> None:
    assert plain(hostile) == shown


@given(st.text(max_size=400), st.integers(1, 200))
def test_any_text_becomes_a_printable_line_within_its_limit(text: str, limit: int) -> None:
    shown = plain(text, limit)
    assert len(shown) <= limit
    assert not any(unicodedata.category(one)[0] == "C" or one in "\n@<>`" for one in shown)


def test_only_a_card_with_papers_has_lines_of_its_own() -> None:
    assert card_lines("task:x", {"serial": "16530", "uuid": "GPU-5a"}) == []
    assert card_lines("gpu:0000:e5:00.0", {"xid": 94}) == []
