"""The index finds the same policy as reading them one by one."""

from __future__ import annotations

from typing import Any

from chronicle import START
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.matching import PolicyIndex
from bandog.domain.model import Finding, Severity
from bandog.domain.policy import FactTest, Match, Policy, first_match

VALUES = st.sampled_from([0, 1, 1.0, True, False, 31, 94, "94", "driver", ""])
TESTS = st.one_of(
    st.builds(FactTest, any_of=st.lists(VALUES, min_size=1, max_size=3).map(tuple)),
    st.builds(FactTest, minimum=st.integers(0, 100)),
    st.builds(FactTest, glob=st.sampled_from(["9*", "d?iver"])),
)
MATCHES = st.builds(
    Match,
    kinds=st.lists(st.sampled_from(["nvidia.xid", "nvidia.*", "task.hung", "*"]), max_size=2).map(tuple),
    subjects=st.sampled_from([(), ("gpu:*",), ("host",)]),
    facts=st.dictionaries(st.sampled_from(["xid", "class"]), TESTS, max_size=2),
    severity=st.sampled_from([None, Severity.WARNING, Severity.CRITICAL]),
)


@given(
    st.lists(MATCHES, max_size=8),
    st.sampled_from(["nvidia.xid", "task.hung", "memory.corrected"]),
    st.dictionaries(st.sampled_from(["xid", "class"]), VALUES, max_size=2),
)
def test_it_finds_the_first_policy_that_takes_the_finding(
    matches: list[Match], kind: str, facts: dict[str, Any]
) -> None:
    policies = [Policy(name=f"p{number}", match=match) for number, match in enumerate(matches)]
    finding = Finding(kind=kind, subject="gpu:x", severity=Severity.ERROR, at=START, facts=facts)
    assert PolicyIndex(policies).find(finding) is first_match(policies, finding)


def test_a_fact_that_cannot_be_looked_up_is_no_match_and_no_error() -> None:
    policies = [Policy(name="p", match=Match(kinds=("x",), facts={"xid": FactTest(any_of=(94,))}))]
    facts: Any = {"xid": [94]}
    finding = Finding(kind="x", subject="host", severity=Severity.ERROR, at=START, facts=facts)
    assert PolicyIndex(policies).find(finding) is None


def test_kinds_without_end_do_not_fill_the_memory() -> None:
    index = PolicyIndex([Policy(name="p", match=Match(kinds=("*",)))])
    for number in range(2000):
        finding = Finding(kind=f"k.{number}", subject="host", severity=Severity.INFO, at=START)
        assert index.find(finding) is not None
    assert len(index._by_kind) <= 512
