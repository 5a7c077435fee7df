"""What is rendered as an environment file comes out of systemd's parser as it went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from systemd_env import parsed

from bandog.services.env_file import is_ours, is_value, render

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
VALUES = st.text(
    st.one_of(st.sampled_from(" \t\n\"'\\`$#;=%{}~!&|*?"), st.characters(exclude_categories=("Cc", "Cs"))), max_size=60
)


@given(env=st.dictionaries(NAMES, VALUES, max_size=6), comment=VALUES)
def test_every_variable_survives_the_way_through_systemd(env: dict[str, str], comment: str) -> None:
    line = comment.replace("\n", " ").replace("\r", " ").rstrip("\\")
    assert parsed(render(env, comment=line)) == env


@pytest.mark.parametrize("value", ["a\0b", "a\rb", "\x1b[0m", "\ud800", "x" * 40000])
def test_a_value_that_systemd_drops_is_refused(value: str) -> None:
    assert not is_value(value)
    with pytest.raises(ValueError, match="NAME"):
        render({"NAME": value})


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", "A\n"])
def test_a_name_that_systemd_drops_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        render({name: "x"})


@pytest.mark.parametrize("comment", ["a\nLD_PRELOAD=x", "a\\", "a\rb"])
def test_a_comment_cannot_become_an_assignment(comment: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        render({}, comment=comment)


def test_what_bandog_sets_is_nobody_elses() -> None:
    assert is_ours("CUDA_VISIBLE_DEVICES") and is_ours("BANDOG_ANYTHING") and not is_ours("NCCL_P2P_DISABLE")
