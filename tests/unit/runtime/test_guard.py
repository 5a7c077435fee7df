"""The guard ends a plugin's call that holds the loop, and leaves all others alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bandog.domain.model import Instant
from bandog.runtime.guard import Guard, PluginTimeout
from bandog.runtime.holding import Holding


@pytest.fixture
def guard() -> Iterator[Guard]:
    one = Guard(timedelta(milliseconds=50))
    one.start()
    yield one
    one.stop()


def test_a_call_that_blocks_is_interrupted_where_it_stands(guard: Guard) -> None:
    begun = time.monotonic()
    with pytest.raises(PluginTimeout, match="slow held the loop"), guard.watch("slow"):
        time.sleep(30)
    assert time.monotonic() - begun < 5


def test_a_plugin_that_catches_every_exception_is_interrupted_all_the_same(guard: Guard) -> None:
    with pytest.raises(PluginTimeout), guard.watch("stubborn"):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue


def test_many_short_calls_in_a_row_are_never_interrupted(guard: Guard) -> None:
    until = time.monotonic() + 0.3
    calls = 0
    while time.monotonic() < until:
        with guard.watch("quick"):
            calls += 1
    assert calls > 100


def test_the_steps_of_a_coroutine_give_what_it_gives_and_take_what_it_waits_for() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        return await asyncio.to_thread(lambda: "done")

    async def main() -> str:
        return await Guard().steps("plain", work())

    assert asyncio.run(main()) == "done"


def test_a_cancellation_reaches_the_coroutine() -> None:
    seen = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        async def stepped() -> None:
            await Guard().steps("plain", work())

        task = asyncio.create_task(stepped())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_a_coroutine_that_holds_the_loop_is_interrupted_and_one_that_waits_is_not(guard: Guard) -> None:
    async def work() -> None:
        await asyncio.sleep(0.2)
        time.sleep(30)  # noqa: ASYNC251  (this is what must not be done)

    async def main() -> None:
        await guard.steps("slow", work())

    begun = time.monotonic()
    with pytest.raises(PluginTimeout, match="slow held the loop"):
        asyncio.run(main())
    assert 0.2 <= time.monotonic() - begun < 5


def test_a_coroutine_is_on_record_only_while_it_holds_the_loop(tmp_path: Path) -> None:
    now = Instant(boot_id="b", boottime=timedelta(seconds=10), utc=datetime(2026, 11, 30, tzinfo=UTC))
    guard = Guard(holding=Holding(tmp_path, now))
    seen = []

    def on_record() -> bool:
        return b"stepper" in (tmp_path / "holding").read_bytes() and (tmp_path / "holding").read_bytes()[0] != 0

    async def work() -> None:
        seen.append(on_record())
        await asyncio.sleep(0)
        seen.append(on_record())

    async def main() -> None:
        async def stepped() -> None:
            await guard.steps("stepper", work())

        task = asyncio.create_task(stepped())
        await asyncio.sleep(0)
        seen.append(on_record())
        await task

    asyncio.run(main())
    assert seen == [True, False, True]
