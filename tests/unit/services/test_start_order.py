"""`services start` starts one after the other, side by side only where both say so, and a failure stops nobody."""

from __future__ import annotations

from datetime import timedelta

import pytest
from start_bench import Bench, ends, service

from bandog.host.site import Readiness
from bandog.services.registry import Registry
from bandog.services.start_order import Progress, describe, may_stand_beside, plan

A, B = "0000:17:00.0", "0000:65:00.0"
UUID = "GPU-11111111-1111-1111-1111-111111111111"


def test_the_plan_follows_order_then_name() -> None:
    registry = Registry((service("c", 1), service("a", 2), service("b", 1)))
    assert [one.name for one in plan(registry)] == ["b", "c", "a"]
    assert [one.name for one in plan(registry, ["a", "c"])] == ["c", "a"]
    assert [one.name for one in plan(registry, units={"a.service"})] == ["a"]


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="zz"):
        plan(Registry((service("a", 1),)), ["zz"])


def test_the_dry_run_says_what_would_be_waited_for() -> None:
    one, other = service("a", 1, parallel=True, gpus=(A,)), service("b", 2, parallel=True, gpus=(B,))
    lines = describe([one, other])
    assert lines[0].progress is Progress.PLANNED
    assert lines[0].why == "wait up to 300 s until it serves, then 20 s more"
    assert lines[1].why.endswith("; beside a")


def test_the_second_is_started_only_after_the_first_was_ready_for_its_settle() -> None:
    bench = Bench(service("first", 1), service("second", 2))
    bench.services.readiness["first"] = [*[Readiness(ready=False)] * 5, Readiness(ready=True)]
    assert ends(bench.start()) == {"first": Progress.STARTED, "second": Progress.STARTED}
    assert bench.jobs_at["second.service"] - bench.jobs_at["first.service"] >= timedelta(seconds=30)


def test_what_fails_keeps_nobody_else_down() -> None:
    bench = Bench(service("first", 1), service("second", 2), service("third", 3))
    bench.systemd.script("start", "first.service", "failed")
    bench.services.readiness["second"] = Readiness(ready=False, why="loading")
    started = bench.start()
    assert ends(started) == {"first": Progress.FAILED, "second": Progress.FAILED, "third": Progress.STARTED}
    assert not started.ok


def test_services_on_different_gpus_start_together_only_if_both_say_so() -> None:
    for both in (True, False):
        bench = Bench(service("a", 1, gpus=(A,), parallel=True), service("b", 2, gpus=(B,), parallel=both))
        bench.start()
        gap = bench.jobs_at["b.service"] - bench.jobs_at["a.service"]
        assert (gap < timedelta(seconds=2)) is both


def test_a_shared_card_keeps_two_apart_whatever_it_is_called() -> None:
    def pair(mine: object, theirs: object) -> bool:
        one, other = service("a", gpus=mine, parallel=True), service("b", gpus=theirs, parallel=True)
        return may_stand_beside(one, other, {UUID: A})

    assert pair((A,), (B,)) and pair((UUID,), (B,)) and pair((), "all")
    assert not pair((A,), (A, B)) and not pair((UUID,), (A,)) and not pair("all", (B,))
    one, other = service("a", gpus=(UUID,), parallel=True), service("b", gpus=(A,), parallel=True)
    assert not may_stand_beside(one, other), "a UUID that nobody knows may be any card"


def test_a_third_waits_for_both_of_two_that_start_together() -> None:
    bench = Bench(
        service("a", 1, gpus=(A,), parallel=True),
        service("b", 2, gpus=(B,), parallel=True),
        service("c", 3, gpus="all"),
    )
    bench.services.readiness["a"] = [*[Readiness(ready=False)] * 20, Readiness(ready=True)]
    assert bench.start().ok
    assert bench.jobs_at["c.service"] - bench.jobs_at["a.service"] >= timedelta(seconds=60)
