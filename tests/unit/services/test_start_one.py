"""The start of one service: what it waits for, what gives it more time, and when it has passed its gate."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from start_bench import Bench, ends, service

from bandog.domain.gpus import GpuLook
from bandog.host.site import CanaryAnswer, Readiness
from bandog.services.profiles import Refusal
from bandog.services.start_one import Signs
from bandog.services.start_order import Progress

A = "0000:17:00.0"
GIB = 1 << 30
NOT_YET = Readiness(ready=False, why="connection refused")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_what_serves_already_is_left_alone() -> None:
    bench = Bench(service("first"))
    bench.systemd.change("first.service", active_state="active")
    assert ends(bench.start()) == {"first": Progress.ALREADY}
    assert bench.systemd.jobs == []


def test_a_service_that_never_gets_ready_fails_at_its_timeout() -> None:
    bench = Bench(service("first", timeout=seconds(40)))
    bench.services.readiness["first"] = Readiness(ready=None, why="timeout")
    [line] = bench.start().lines
    assert (line.progress, line.why) == (Progress.FAILED, "not ready within 40 s: timeout")


@pytest.mark.parametrize(
    "sign", [lambda n: Signs(log=str(n)), lambda n: Signs(read=n << 20), lambda n: Signs(memory=n << 27)]
)
def test_a_start_that_makes_progress_is_given_more_time(sign: Any) -> None:
    bench = Bench(service("first", timeout=seconds(120)))
    bench.grown = lambda since: sign(int(since.total_seconds() // 20))

    def readiness(_: str) -> Readiness:
        return Readiness(ready=True) if bench.since > seconds(1500) else NOT_YET

    bench.services.ready = readiness  # type: ignore[method-assign]  # the test's own double
    assert ends(bench.start()) == {"first": Progress.STARTED}
    assert [why.partition(":")[0] for why in bench.said(Progress.SLOW)] == [
        f"it makes progress, and has until {limit} s" for limit in (720, 1320, 1920)
    ]


def test_progress_ends_at_two_hours_and_the_unit_is_left_running() -> None:
    bench = Bench(service("first", timeout=seconds(1800)))
    bench.services.readiness["first"] = NOT_YET
    bench.grown = lambda since: Signs(log=str(since))
    [line] = bench.start().lines
    assert line.why == "not ready within 7200 s: connection refused"
    assert [job.verb for job in bench.systemd.jobs] == ["start"]


def test_a_start_that_stopped_moving_gets_no_more() -> None:
    bench = Bench(service("first", timeout=seconds(1800)))
    bench.services.readiness["first"] = NOT_YET
    bench.grown = lambda since: Signs(log=str(min(since, seconds(300))))
    assert bench.start().lines[0].why == "not ready within 1800 s: connection refused"


def test_a_unit_that_crashes_again_and_again_makes_no_progress() -> None:
    bench = Bench(service("first", timeout=seconds(120)))
    bench.services.readiness["first"] = NOT_YET

    def crashing(since: timedelta) -> Signs:
        bench.systemd.change("first.service", n_restarts=int(since.total_seconds() // 10))
        return Signs(log=str(since))

    bench.grown = crashing
    assert bench.start().lines[0].why.startswith("not ready within 720 s")


def test_a_completion_is_part_of_the_gate() -> None:
    bench = Bench(service("first", canary=True))
    bench.services.canaries["first"] = [*[CanaryAnswer(ok=None, why="no answer")] * 10, CanaryAnswer(ok=True, why="ok")]
    assert ends(bench.start()) == {"first": Progress.STARTED}
    assert bench.since >= seconds(38)


def test_a_server_that_is_ready_and_never_completes_fails_and_says_why() -> None:
    bench = Bench(service("first", canary=True, timeout=timedelta(hours=1)))
    bench.services.canaries["first"] = CanaryAnswer(ok=False, why="/v1/models lists no model")
    [line] = bench.start().lines
    assert line.progress is Progress.FAILED and line.why.endswith("canary: /v1/models lists no model")
    assert bench.since < timedelta(minutes=7)


def test_memory_has_to_come_to_rest_before_the_next_one_starts() -> None:
    bench = Bench(service("first", gpus="all", settle=seconds(5)))

    def growing(since: timedelta) -> list[GpuLook]:
        used = min(since.total_seconds(), 60) * GIB
        return [GpuLook(address=A, uuid="GPU-1", memory_used=int(used), memory_total=80 * GIB)]

    bench.cards = growing
    assert ends(bench.start()) == {"first": Progress.STARTED}
    assert seconds(73) <= bench.since <= seconds(90)


def test_memory_that_never_rests_ends_it_in_words() -> None:
    bench = Bench(service("first", gpus="all"))
    bench.cards = lambda since: [GpuLook(address=A, uuid="GPU-1", memory_used=int(since.total_seconds()) * GIB)]
    assert bench.start().lines[0].why.endswith("its GPU memory does not come to rest")


def test_it_waits_for_memory_that_another_holds_and_names_the_holder() -> None:
    bench = Bench(service("first"))
    bench.held = lambda since: ("python3 (pid 7)",) if since < seconds(30) else ()
    assert bench.start().ok
    assert bench.said(Progress.WAITING) == ["memory is held by python3 (pid 7)"]
    assert bench.jobs_at["first.service"] - bench.began >= seconds(30)


def test_after_two_minutes_it_starts_all_the_same_and_says_what_stood_in_the_way() -> None:
    bench = Bench(service("first"))
    bench.held = lambda _: ("Xorg (pid 7)",)
    bench.gone = lambda _: ("e5:00.0",)
    assert bench.start().ok
    assert bench.said(Progress.STARTING) == ["memory is held by Xorg (pid 7); e5:00.0 not there"]
    assert seconds(120) <= bench.jobs_at["first.service"] - bench.began <= seconds(125)


def test_without_a_valid_set_of_cards_it_is_not_started() -> None:
    bench = Bench(service("first"))
    bench.prepared = Refusal(why="first needs 2 healthy GPUs and has 1")
    [line] = bench.start().lines
    assert line.why == "not started: first needs 2 healthy GPUs and has 1"
    assert bench.systemd.jobs == []


def test_a_start_job_that_lasts_does_not_hide_a_server_that_is_ready() -> None:
    """A Type=notify unit has its job until the program says that it is ready."""
    bench = Bench(service("first"))
    held = bench.systemd.hold()
    on_job = bench.systemd.on_job

    def begin(job: Any) -> None:
        assert on_job is not None
        on_job(job)
        bench.systemd.change("first.service", active_state="activating")

    bench.systemd.on_job = begin
    assert ends(bench.start()) == {"first": Progress.STARTED}
    assert not held.is_set()


def test_a_service_that_turns_silent_while_it_settles_does_not_wait_for_ever() -> None:
    bench = Bench(service("first"))
    bench.services.readiness["first"] = [Readiness(ready=True), Readiness(ready=None, why="timeout")]
    assert ends(bench.start()) == {"first": Progress.FAILED}


def test_a_unit_that_dies_while_it_is_waited_for_fails_at_once() -> None:
    bench = Bench(service("first"))

    def dying(name: str) -> Readiness:
        bench.systemd.change("first.service", active_state="failed", result="exit-code")
        return NOT_YET

    bench.services.ready = dying  # type: ignore[method-assign]  # the test's own double
    assert bench.start().lines[0].why == "unit is failed: exit-code"


@pytest.mark.parametrize("fields", [{"load_state": "masked"}, {"need_daemon_reload": True}])
def test_a_unit_that_a_person_changed_is_not_started(fields: dict[str, Any]) -> None:
    bench = Bench(service("first"))
    bench.systemd.change("first.service", **fields)
    assert ends(bench.start()) == {"first": Progress.FAILED}
    assert bench.systemd.jobs == []


def test_signs_are_growth_and_nothing_else() -> None:
    signs = Signs(log="a", read=10 << 20, memory=10 << 30)
    assert not signs.beyond(signs) and not Signs().beyond(signs)
    assert not replace(signs, memory=9 << 30).beyond(signs), "memory that is given back is no progress"
