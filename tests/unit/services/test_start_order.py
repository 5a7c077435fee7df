"""`services start` starts one after the other, each gated on readiness and settle, and stops at a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from bandog.host.site import Readiness
from bandog.services.registry import Registry, Service, Start
from bandog.services.start_order import Line, Progress, Started, describe, plan, start
from bandog.testing import FakeClock, FakeServices, FakeSystemd


def service(name: str, order: int, **start_: Any) -> Service:
    wanted: dict[str, Any] = {"settle": timedelta(seconds=20), "timeout": timedelta(minutes=5), **start_}
    return Service(name=name, unit=f"{name}.service", start=Start(order=order, **wanted))


class Bench:
    def __init__(self, *services: Service) -> None:
        self.clock = FakeClock()
        self.services = FakeServices(*services)
        self.systemd = FakeSystemd(self.clock)
        self.lines: list[Line] = []
        self.jobs_at: dict[str, timedelta] = {}
        self.systemd.on_job = self._job
        for one in services:
            self.systemd.add(one.unit, active_state="inactive", sub_state="dead", main_pid=None)

    def _job(self, job: Any) -> None:
        self.jobs_at[job.unit] = self.clock.now().boottime

    async def ready(self, name: str) -> Readiness:
        return self.services.ready(name)

    def start(self, names: Sequence[str] = ()) -> Started:
        async def go() -> Started:
            running = asyncio.ensure_future(
                start(
                    plan(self.services.registry, names),
                    systemd=self.systemd,
                    ready=self.ready,
                    clock=self.clock,
                    report=self.lines.append,
                )
            )
            while not running.done():
                await self.clock.run(timedelta(seconds=1))
            return await running

        return asyncio.run(go())


def ends(started: Started) -> dict[str, Progress]:
    return {line.service: line.progress for line in started.lines}


def test_the_plan_follows_order_then_name() -> None:
    registry = Registry((service("c", 1), service("a", 2), service("b", 1)))
    assert [one.name for one in plan(registry)] == ["b", "c", "a"]
    assert [one.name for one in plan(registry, ["a", "c"])] == ["c", "a"]


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="zz"):
        plan(Registry((service("a", 1),)), ["zz"])


def test_the_dry_run_says_what_would_be_waited_for() -> None:
    [line] = describe([service("a", 1)])
    assert line.progress is Progress.PLANNED
    assert line.why == "wait up to 300 s until it is ready, then 20 s more"


def test_the_second_is_started_only_after_the_first_was_ready_for_its_settle() -> None:
    bench = Bench(service("first", 1), service("second", 2))
    bench.services.readiness["first"] = [*[Readiness(ready=False)] * 5, Readiness(ready=True)]
    assert ends(bench.start()) == {"first": Progress.STARTED, "second": Progress.STARTED}
    assert bench.jobs_at["second.service"] - bench.jobs_at["first.service"] >= timedelta(seconds=30)


def test_what_serves_already_is_left_alone() -> None:
    bench = Bench(service("first", 1))
    bench.systemd.change("first.service", active_state="active")
    assert ends(bench.start()) == {"first": Progress.ALREADY}
    assert bench.systemd.jobs == []


def test_a_failure_stops_the_rest() -> None:
    bench = Bench(service("first", 1), service("second", 2))
    bench.systemd.script("start", "first.service", "failed")
    started = bench.start()
    assert ends(started) == {"first": Progress.FAILED, "second": Progress.NOT_TRIED}
    assert not started.ok
    assert [job.unit for job in bench.systemd.jobs] == ["first.service"]


def test_a_service_that_never_gets_ready_fails_at_its_timeout() -> None:
    bench = Bench(service("first", 1, timeout=timedelta(seconds=40)))
    bench.services.readiness["first"] = Readiness(ready=None, why="timeout")
    [line] = bench.start().lines
    assert line.progress is Progress.FAILED
    assert line.why == "not ready within 40 s: timeout"


def test_a_service_that_turns_silent_while_it_settles_does_not_wait_for_ever() -> None:
    bench = Bench(service("first", 1, timeout=timedelta(seconds=40)))
    bench.services.readiness["first"] = [Readiness(ready=True), Readiness(ready=None, why="timeout")]
    assert ends(bench.start()) == {"first": Progress.FAILED}


def test_a_unit_that_dies_while_it_is_waited_for_fails_at_once() -> None:
    bench = Bench(service("first", 1))

    async def dying(name: str) -> Readiness:
        bench.systemd.change("first.service", active_state="failed", result="exit-code")
        return Readiness(ready=False)

    bench.ready = dying  # type: ignore[method-assign]  # the test's own bench
    [line] = bench.start().lines
    assert line.why == "unit is failed: exit-code"


@pytest.mark.parametrize("fields", [{"load_state": "masked"}, {"need_daemon_reload": True}])
def test_a_unit_that_a_person_changed_is_not_started(fields: dict[str, Any]) -> None:
    bench = Bench(service("first", 1))
    bench.systemd.change("first.service", **fields)
    assert ends(bench.start()) == {"first": Progress.FAILED}
    assert bench.systemd.jobs == []
