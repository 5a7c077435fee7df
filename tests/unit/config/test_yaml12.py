"""The reader of YAML 1.2 core."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bandog.config import yaml12
from bandog.config.yaml12 import read_document


def value_of(text: str) -> object:
    document, problems = read_document(text.encode(), "f.yaml")
    assert [str(one) for one in problems] == []
    return document.value


OLD_WORDS = """
0000:17:00.0 12:30 017 off on yes no Off True FALSE 2026-11-30 0x10 0o17 0b1 1_000 1e3 .5 5. .inf .nan
Null NULL 1:30:00 << = 09 1234567890123456789 190:20:30 +
"""


@pytest.mark.parametrize("text", OLD_WORDS.split())
def test_what_yaml_1_1_would_have_changed_stays_text(text: str) -> None:
    assert value_of(f"key: [x, {text}]") == {"key": ["x", text]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("+7", 7),
        ("1.5", 1.5),
        ("-0.25e2", -25.0),
        ('"17"', "17"),
        ("'true'", "true"),
    ],
)
def test_only_truth_values_null_and_decimal_numbers_are_not_text(text: str, value: object) -> None:
    read = value_of(f"key: {text}")
    assert read == {"key": value}
    assert isinstance(read, dict) and type(read["key"]) is type(value)


def test_keys_are_always_text() -> None:
    assert value_of("1: a\ntrue: b\n0000:17:00.0: c\n") == {"1": "a", "true": "b", "0000:17:00.0": "c"}


@pytest.mark.parametrize("text", ["", "# nothing\n\n  # here\n", "---\n", "\ufeff# marked\n"])
def test_a_file_of_comments_is_no_document(text: str) -> None:
    assert value_of(text) is None


def test_every_value_and_key_knows_its_place() -> None:
    document, _ = read_document(b"a:\n  - x\n  - {b: y}\n", "f.yaml")
    assert document.where(("a", 1, "b")) == ("f.yaml", (3, 9))
    assert document.where(("a", 1, "b"), key=True) == ("f.yaml", (3, 6))
    assert document.where(("a", 0)) == ("f.yaml", (2, 5))
    assert document.where(("a", 7, "gone")) == ("f.yaml", (2, 3))


def test_columns_count_characters_and_windows_line_ends_are_one_line_end() -> None:
    document, _ = read_document("a: {ü: 1, b: 2}\r\nc: 3\r\n".encode(), "f.yaml")
    assert document.where(("a", "b")) == ("f.yaml", (1, 14))
    assert document.where(("c",)) == ("f.yaml", (2, 4))


def test_all_that_is_wrong_with_the_tree_is_reported_at_once() -> None:
    _, problems = read_document(b"a: &x 1\nb: *x\nc: !t 2\nc: 3\n", "f.yaml")
    assert [(one.code, one.line, one.column) for one in problems] == [
        ("anchor", 1, 4),
        ("alias", 2, 4),
        ("tag", 3, 4),
        ("duplicate-key", 4, 1),
    ]


def test_deep_nesting_ends_reading_without_using_up_the_stack() -> None:
    _, problems = read_document(b"[" * 500_000, "f.yaml")
    assert [one.code for one in problems] == ["nesting"]


_PIECES = st.sampled_from(
    ["a", "key", ":", ": ", "- ", "\n", "  ", "{", "}", "[", "]", ",", "&x", "*x", "!t", "!!str", "#", "'", '"', "|",
     ">", "?", "---\n", "...\n", "%YAML 1.1\n", "<<", "\t", "\r", "\0", "\ufeff", "ü", "\u2028", "\\x00", "\\ud800",
     "017", "1e999", "9" * 30]
)  # fmt: skip


def _is_plain(value: object, depth: int = 0) -> bool:
    assert depth <= yaml12.DEPTH
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one, depth + 1) for key, one in value.items())
    if isinstance(value, list):
        return all(_is_plain(one, depth + 1) for one in value)
    if isinstance(value, str):
        value.encode("utf-8")  # no surrogates
        return "\0" not in value
    return value is None or isinstance(value, bool | int | float)


@given(st.one_of(st.binary(max_size=200), st.lists(_PIECES, max_size=40).map(lambda x: "".join(x).encode())))
@example(b'"\\ud800"')
@example(b"? - a\n: b")
@example(b"\xef\xbb\xbf\xef\xbb\xbfa")
def test_arbitrary_bytes_give_plain_values_or_problems_and_never_raise(data: bytes) -> None:
    document, problems = read_document(data, "f.yaml")
    assert _is_plain(document.value)
    assert all(one.line >= 0 and one.column >= 0 and "\n" not in str(one) for one in problems)
    if problems:
        assert document.value is None


@given(st.lists(_PIECES, max_size=30).map(lambda x: "".join(x).encode()))
def test_without_the_c_library_the_same_promises_hold(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml12, "_PARSER", yaml.SafeLoader)  # the build without libyaml
        document, problems = read_document(data, "f.yaml")
    assert _is_plain(document.value)
    assert document.value is None or not problems


_WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=8)
_SCALARS = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | _WORDS


@given(st.dictionaries(_WORDS, _SCALARS | st.lists(_SCALARS | st.dictionaries(_WORDS, _SCALARS), max_size=3)))
def test_what_a_writer_quotes_comes_back_as_it_was(value: object) -> None:
    document, problems = read_document(json.dumps(value, ensure_ascii=False).encode(), "f.yaml")  # JSON is YAML 1.2
    assert problems == []
    assert document.value == value
