"""A blocking call is left behind at its deadline, and too many of them are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from bandog.host.bounded import Bounded, Overrun

SOON = timedelta(milliseconds=20)
LONG = timedelta(seconds=10)


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """An event that the test's blocked calls wait for; set at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_a_value_comes_back_and_an_error_is_raised() -> None:
    bounded = Bounded("test")
    assert bounded.call(lambda: 7, deadline=LONG) == 7
    with pytest.raises(ZeroDivisionError):
        bounded.call(lambda: 1 // 0, deadline=LONG)


def test_a_call_past_its_deadline_is_left_behind_and_counted_until_it_ends(held: threading.Event) -> None:
    bounded, ended = Bounded("test"), threading.Event()

    def work() -> None:
        held.wait(10)
        ended.set()

    with pytest.raises(Overrun, match="no end within"):
        bounded.call(work, deadline=SOON)
    assert bounded.overrun == 1
    held.set()
    assert ended.wait(10)
    for thread in threading.enumerate():
        if thread.name == "test":
            thread.join(10)
    assert bounded.overrun == 0


def test_too_many_that_have_not_ended_are_refused(held: threading.Event) -> None:
    bounded = Bounded("test", left=2)
    for _ in range(2):
        with pytest.raises(Overrun):
            bounded.call(lambda: held.wait(10), deadline=SOON)
    with pytest.raises(Overrun, match="2 earlier calls have not ended"):
        bounded.call(lambda: 7, deadline=LONG)


def test_abort_is_called_at_the_deadline(held: threading.Event) -> None:
    with pytest.raises(Overrun):
        Bounded("test").call(lambda: held.wait(10), deadline=SOON, abort=held.set)
    assert held.is_set()
