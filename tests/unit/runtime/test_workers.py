"""Workers: a deadline for whatever blocks, nothing lost but what came too late, and a bound."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from bandog.runtime.workers import MOST_STUCK, WorkerCrash, Workers, WorkersBusy, WorkerTimeout

SOON = timedelta(seconds=10)
AT_ONCE = timedelta(milliseconds=20)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run one coroutine under a deadline."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work(), 20)

    return asyncio.run(bounded())


def test_the_value_comes_back_from_a_named_daemon_thread() -> None:
    async def work() -> tuple[str, bool]:
        workers = Workers()
        return await workers.run(
            lambda: (threading.current_thread().name, threading.current_thread().daemon), deadline=SOON, name="x"
        )

    assert run(work) == ("worker-1", True)


def test_what_it_raises_is_raised_to_the_caller() -> None:
    def fail() -> None:
        raise ValueError("odd")

    async def work() -> None:
        await Workers().run(fail, deadline=SOON, name="x")

    with pytest.raises(ValueError, match="odd"):
        run(work)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_what_would_end_the_loop_is_contained(raised: BaseException) -> None:
    def fail() -> None:
        raise raised

    async def work() -> None:
        workers = Workers()
        with pytest.raises(WorkerCrash, match=f"x raised {type(raised).__name__}"):
            await workers.run(fail, deadline=SOON, name="x")
        assert await workers.run(lambda: 1, deadline=SOON, name="y") == 1

    run(work)


def test_work_past_its_deadline_is_left_behind_named_and_its_late_result_dropped_and_counted() -> None:
    go = threading.Event()
    told: list[tuple[str, ...]] = []

    async def work() -> None:
        workers = Workers(on_stuck=told.append, on_free=lambda: told.append(()))
        with pytest.raises(WorkerTimeout, match=r"probe gave no answer within 0\.02 s") as caught:
            await workers.run(lambda: go.wait(20), deadline=AT_ONCE, name="probe")
        assert (workers.stuck, workers.busy, workers.late) == (("probe",), 1, 0)
        go.set()
        await caught.value.late
        assert (workers.stuck, workers.busy, workers.late) == ((), 0, 1)

    run(work)
    assert told == [("probe",), ()]


def test_a_full_pool_refuses_at_once_and_says_who_fills_it() -> None:
    go = threading.Event()

    async def work() -> None:
        workers = Workers(2)
        stuck = [asyncio.ensure_future(workers.run(lambda: go.wait(20), deadline=SOON, name=n)) for n in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(WorkersBusy, match="all 2 worker threads are occupied by: a, b"):
            await workers.run(lambda: 1, deadline=SOON, name="c")
        assert workers.refused == 1
        go.set()
        await asyncio.gather(*stuck)
        assert await workers.run(lambda: 1, deadline=SOON, name="c") == 1

    run(work)


def threads() -> set[threading.Thread]:
    """The worker threads that are there."""
    return {one for one in threading.enumerate() if one.name.startswith("worker-")}


def test_what_hangs_is_not_begun_again_and_leaves_the_other_threads_free() -> None:
    go = threading.Event()

    async def story() -> None:
        workers = Workers(max_threads=MOST_STUCK + 1)
        for _ in range(MOST_STUCK):
            with pytest.raises(WorkerTimeout):
                await workers.run(lambda: go.wait(20), deadline=timedelta(milliseconds=10), name="probe")
        with pytest.raises(WorkersBusy, match=f"probe is not begun again while {MOST_STUCK} of it hang"):
            await workers.run(lambda: 1, deadline=timedelta(seconds=5), name="probe")
        assert await workers.run(lambda: 7, deadline=timedelta(seconds=5), name="gate") == 7
        go.set()
        while workers.stuck:  # noqa: ASYNC110  (the other side is a thread)
            await asyncio.sleep(0.001)
        assert await workers.run(lambda: 8, deadline=timedelta(seconds=5), name="probe") == 8

    run(story)


def test_idle_threads_are_used_again_and_few_are_kept() -> None:
    before = threads()

    async def left(count: int) -> None:
        while len(threads() - before) > count:  # noqa: ASYNC110  (the other side is a thread)
            await asyncio.sleep(0.001)

    async def work() -> None:
        workers = Workers()
        names = [await workers.run(lambda: threading.current_thread().name, deadline=SOON, name="x") for _ in "12345"]
        assert set(names) == {"worker-1"}
        barrier = threading.Barrier(8)
        await asyncio.gather(*(workers.run(barrier.wait, deadline=SOON, name="x") for _ in range(8)))
        await left(4)
        workers.close()
        await left(0)

    run(work)


def test_a_cancelled_caller_leaves_its_work_behind() -> None:
    go = threading.Event()

    async def work() -> None:
        workers = Workers()
        caller = asyncio.ensure_future(workers.run(lambda: go.wait(20), deadline=SOON, name="x"))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert workers.stuck == ("x",)
        go.set()
        while workers.busy:  # noqa: ASYNC110  (the other side is a thread)
            await asyncio.sleep(0.001)
        assert workers.late == 1

    run(work)


def test_a_worker_that_ends_after_the_loop_does_no_harm() -> None:
    go = threading.Event()
    before = threads()

    async def work() -> None:
        with pytest.raises(WorkerTimeout):
            await Workers().run(lambda: go.wait(20), deadline=AT_ONCE, name="x")

    run(work)
    go.set()
    for thread in threads() - before:
        thread.join(5)
        assert not thread.is_alive()
