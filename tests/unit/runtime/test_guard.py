"""The guard ends a plugin's call that holds the loop, and leaves all others alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from bandog.runtime.guard import Guard, PluginTimeout


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
