"""Leaky buckets and step limits: how they fill, leak, and outlive restarts."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from chronicle import START
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.changes import Change, Remembered
from bandog.domain.counting import Buckets, StepLimits, weight_of
from bandog.domain.model import Finding, Instant, Severity
from bandog.domain.policy import Rate

TEN = Rate(count=10, per=timedelta(hours=1))


def memory_of(changes: list[Change]) -> dict[str, Any]:
    memory: dict[str, Any] = {}
    for change in changes:
        assert isinstance(change, Remembered)
        memory[change.key] = json.loads(json.dumps(change.value))
    return {key: value for key, value in memory.items() if value is not None}


@pytest.mark.parametrize(
    ("count", "weight"), [(3, 3), (0, 0), (-4, 0), (True, 1), ("7", 1), (float("inf"), 1), (2.5, 2.5)]
)
def test_a_finding_weighs_its_count_if_that_is_a_number(count: Any, weight: float) -> None:
    finding = Finding(kind="x", subject="host", severity=Severity.INFO, at=START, facts={"count": count})
    assert weight_of(finding) == weight


def test_n_in_quick_succession_fill_a_bucket_and_empty_it() -> None:
    buckets, out = Buckets({}), []
    filled = [buckets.fill("k", TEN, 1, START.plus(timedelta(seconds=n)), out) for n in range(20)]
    assert filled == [False] * 9 + [True] + [False] * 9 + [True]


def test_a_drip_slower_than_the_leak_never_fills_it() -> None:
    buckets, out = Buckets({}), []
    times = (START.plus(timedelta(minutes=6 * n)) for n in range(200))
    assert not any(buckets.fill("k", TEN, 1, at, out) for at in times)


def test_one_heavy_finding_fills_it_at_once_and_no_more_than_that() -> None:
    buckets, out = Buckets({}), []
    assert buckets.fill("k", TEN, 1e9, START, out)
    assert not buckets.fill("k", TEN, 9, START, out)


def test_no_wall_clock_empties_it() -> None:
    buckets, out = Buckets({}), []
    buckets.fill("k", TEN, 9, START, out)
    later = Instant(boot_id="boot-2", boottime=timedelta(seconds=9), utc=START.utc + timedelta(days=999), synced=False)
    assert Buckets(memory_of(out)).fill("k", TEN, 1, later, out)


def test_a_flood_is_saved_once_a_second_and_a_tick_saves_the_rest() -> None:
    buckets, out = Buckets({}), []
    huge = Rate(count=1e6, per=timedelta(hours=1))
    for _ in range(1000):
        buckets.fill("k", huge, 1, START, out)
    assert len(out) == 1
    buckets.flush(START, out)
    assert memory_of(out)["engine.bucket.k"]["level"] == 1000


def test_a_bucket_that_has_leaked_away_is_forgotten() -> None:
    buckets, out = Buckets({}), []
    buckets.fill("k", TEN, 5, START, out)
    buckets.flush(START.plus(timedelta(minutes=29)), out)
    assert len(buckets) == 1
    buckets.flush(START.plus(timedelta(minutes=30)), out)
    assert (len(buckets), memory_of(out)) == (0, {})


def test_buckets_are_bounded() -> None:
    buckets, out = Buckets({}), []
    for number in range(5000):
        buckets.fill(f"p||task:{number}", TEN, 1, START, out)
    assert len(buckets) == len(memory_of(out)) == 4096


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30)), max_size=60))
def test_it_fills_only_if_n_came_in_since_it_was_last_empty(drops: list[tuple[int, int]]) -> None:
    buckets, now, came = Buckets({}), START, 0
    for seconds, weight in drops:
        now, came = now.plus(timedelta(seconds=seconds)), came + weight
        if buckets.fill("k", TEN, weight, now, []):
            assert came > 9
            came = 0


def test_a_limit_counts_what_is_not_provably_past_and_survives_restarts() -> None:
    limits, out = StepLimits({}), []
    rate = Rate(count=2, per=timedelta(hours=1))
    limits.use("k", rate, START, out)
    limits.use("k", rate, START.plus(timedelta(minutes=30)), out)
    limits = StepLimits(memory_of(out))
    assert limits.used("k", rate, START.plus(timedelta(minutes=59))) == 2
    assert limits.used("k", rate, START.plus(timedelta(minutes=60))) == 1
    limits.give_back("k", out)
    assert limits.used("k", rate, START) == 1
    limits.prune(START.plus(timedelta(minutes=90)), out)
    assert memory_of(out) == {}
