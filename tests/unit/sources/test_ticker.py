"""The second hand of the loop."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from bandog.sources.ticker import Ticker

EVERY = timedelta(milliseconds=10)


def ticked(count: int, on_tick: object = None) -> Ticker:
    """Run a ticker until it has ticked `count` times."""

    async def main() -> Ticker:
        enough = asyncio.Event()

        def tick(late: timedelta) -> None:
            if ticker.ticks >= count:
                enough.set()
            if callable(on_tick):
                on_tick()

        ticker = Ticker(tick, every=EVERY)
        ticker.start()
        async with asyncio.timeout(5):
            await enough.wait()
        ticker.stop()
        return ticker

    return asyncio.run(main())


def test_ticks_without_drift() -> None:
    began = time.monotonic()
    ticker = ticked(10)
    took = time.monotonic() - began
    assert took >= 0.1
    assert ticker.ticks + ticker.missed <= took / EVERY.total_seconds()


def test_a_busy_loop_makes_it_late_and_missed_ticks_are_counted_not_made_up_for() -> None:
    busy = iter([0.055])

    def block() -> None:
        until = time.monotonic() + next(busy, 0.0)
        while time.monotonic() < until:
            pass

    ticker = ticked(3, block)
    assert ticker.missed >= 4
    assert ticker.take_worst() >= timedelta(milliseconds=30)
    assert ticker.take_worst() == timedelta()


def test_goes_on_after_an_exception() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        caught: list[object] = []
        done = asyncio.Event()
        loop.set_exception_handler(lambda _, context: caught.append(context["exception"]))

        def tick(late: timedelta) -> None:
            if ticker.ticks >= 2:
                done.set()
            raise RuntimeError("a tick that fails")

        ticker = Ticker(tick, every=EVERY)
        ticker.start()
        async with asyncio.timeout(5):
            await done.wait()
        ticker.stop()
        return len(caught)

    assert asyncio.run(main()) >= 1


def test_no_tick_after_stop() -> None:
    async def main() -> int:
        ticker = Ticker(lambda late: None, every=EVERY)
        ticker.start()
        ticker.stop()
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.03)
        return ticker.ticks

    assert asyncio.run(main()) == 0
