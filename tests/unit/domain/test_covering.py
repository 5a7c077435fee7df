"""What an earlier policy leaves nothing to is found as if each pair was asked, and much faster."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.covering import covered
from bandog.domain.model import Severity
from bandog.domain.policy import FactTest, Match, Policy

VALUES = st.sampled_from([1, 1.0, True, 31, 94, "94", "driver"])
TESTS = st.one_of(
    st.builds(FactTest, any_of=st.lists(VALUES, min_size=1, max_size=3).map(tuple)),
    st.builds(FactTest, any_of=st.lists(VALUES, max_size=2).map(tuple), minimum=st.integers(0, 2)),
    st.builds(FactTest, glob=st.sampled_from(["9*", "d?iver", "*"])),
)
MATCHES = st.builds(
    Match,
    kinds=st.lists(st.sampled_from(["nvidia.xid", "nvidia.*", "task.hung", "*"]), min_size=1, max_size=2).map(tuple),
    subjects=st.lists(st.sampled_from(["gpu:*", "gpu:x", "host"]), max_size=2).map(tuple),
    facts=st.dictionaries(st.sampled_from(["xid", "class"]), TESTS, max_size=2),
    severity=st.sampled_from([None, Severity.WARNING, Severity.CRITICAL]),
)


@given(st.lists(MATCHES, max_size=8))
def test_it_finds_what_asking_each_pair_finds(matches: list[Match]) -> None:
    policies = [Policy(name=f"p{number}", match=match) for number, match in enumerate(matches)]
    asked = []
    for number, policy in enumerate(policies):
        asked += [(policy, one) for one in policies[:number] if one.match.covers(policy.match)][:1]
    assert list(covered(policies)) == asked


def test_two_thousand_policies_do_not_hold_up_the_start() -> None:
    matches = [
        Match(kinds=("nvidia.xid",), facts={"xid": FactTest(any_of=(number,)), "process": FactTest(glob="vllm*")})
        for number in range(2000)
    ]
    policies = [Policy(name=f"p{number}", match=match) for number, match in enumerate(matches)]
    began = time.process_time()
    assert list(covered(policies)) == []
    assert time.process_time() - began < 1, "asking each pair takes six seconds"
