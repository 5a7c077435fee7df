"""The outbox decides what goes where and when: grouping, rate, backoff, give-up, spool rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bandog.domain.codec import from_json
from bandog.domain.model import Instant
from bandog.runtime.messages import Message
from bandog.runtime.outbox import Outbox
from bandog.runtime.outlet_queue import Pace
from bandog.store.rows import DropMessage, SaveMessage
from bandog.testing import FakeClock

SECOND = timedelta(seconds=1)
ONE = {"oncall": ["oncall/0"]}
TWO = {"oncall": ["oncall/0"], "chat": ["chat/0"]}


def message(clock: FakeClock, number: int = 1, **fields: Any) -> Message:
    base = Message(
        id=f"m{number}",
        to=(),
        title=f"[gpu07] #{number} error",
        text=f"text {number}",
        made=clock.now(),
        incident=number,
    )
    return replace(base, **fields)


def ids(batch: tuple[Message, ...]) -> list[str]:
    return [one.id for one in batch]


def test_a_message_waits_for_its_group_and_then_goes() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock))
    assert box.next("oncall/0", clock.now()) == ()
    assert box.wait("oncall/0", clock.now()) == 2 * SECOND
    clock.advance(2 * SECOND)
    assert ids(box.next("oncall/0", clock.now())) == ["m1"]


def test_what_comes_later_to_the_same_incident_goes_with_the_first() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock, 1))
    clock.advance(1.9 * SECOND)
    box.add(message(clock, 1, id="later"))
    box.add(message(clock, 2))
    clock.advance(0.1 * SECOND)
    assert ids(box.next("oncall/0", clock.now())) == ["m1", "later"]


def test_one_delivery_at_a_time_for_an_outlet() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    for number in (1, 2):
        box.add(message(clock, number))
    clock.advance(2 * SECOND)
    batch = box.next("oncall/0", clock.now())
    assert box.next("oncall/0", clock.now()) == ()
    box.done("oncall/0", batch, None, clock.now())
    assert ids(box.next("oncall/0", clock.now())) == ["m2"]


def test_the_spool_row_goes_only_when_every_outlet_has_the_message() -> None:
    clock, box = FakeClock(), Outbox(TWO)
    [row] = box.add(message(clock, urgent=True)).rows
    assert isinstance(row, SaveMessage)
    assert row.payload["pending"] == ["chat/0", "oncall/0"]
    batch = box.next("chat/0", clock.now())
    [row] = box.done("chat/0", batch, None, clock.now()).rows
    assert isinstance(row, SaveMessage)
    assert row.payload["pending"] == ["oncall/0"]
    batch = box.next("oncall/0", clock.now())
    assert box.done("oncall/0", batch, None, clock.now()).rows == (DropMessage(id="m1"),)
    assert box.empty


def test_a_message_goes_only_to_those_that_it_names() -> None:
    clock, box = FakeClock(), Outbox(TWO)
    box.add(message(clock, to=("chat",), urgent=True))
    assert box.next("oncall/0", clock.now()) == ()
    assert ids(box.next("chat/0", clock.now())) == ["m1"]


def test_failures_back_off_further_each_time_and_a_success_ends_it() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock))
    clock.advance(2 * SECOND)
    pauses = []
    for _ in range(9):
        batch = box.next("oncall/0", clock.now())
        assert batch
        box.done("oncall/0", batch, "451", clock.now())
        wait = box.wait("oncall/0", clock.now())
        assert wait is not None
        pauses.append(wait.total_seconds())
        clock.advance(wait)
    assert pauses[:4] == [5, 10, 20, 40]
    assert pauses[-1] == 600
    box.done("oncall/0", box.next("oncall/0", clock.now()), None, clock.now())
    assert [state.failures for state in box.states()] == [0]


def test_a_page_does_not_sit_out_a_long_backoff() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock))
    clock.advance(2 * SECOND)
    for _ in range(8):
        box.done("oncall/0", box.next("oncall/0", clock.now()), "451", clock.now())
        clock.advance(box.wait("oncall/0", clock.now()) or SECOND)
    box.done("oncall/0", box.next("oncall/0", clock.now()), "451", clock.now())
    box.add(message(clock, 2, urgent=True))
    wait = box.wait("oncall/0", clock.now())
    assert wait is not None
    assert wait <= 15 * SECOND


def test_a_message_is_unheard_once_when_all_of_its_outlets_have_failed() -> None:
    clock, box = FakeClock(), Outbox(TWO)
    box.add(message(clock, urgent=True))
    assert box.done("chat/0", box.next("chat/0", clock.now()), "no", clock.now()).unheard == ()
    outcome = box.done("oncall/0", box.next("oncall/0", clock.now()), "no", clock.now())
    assert ids(outcome.unheard) == ["m1"]
    clock.advance(20 * SECOND)
    assert box.done("chat/0", box.next("chat/0", clock.now()), "no", clock.now()).unheard == ()


def test_a_message_is_unheard_at_once_when_nobody_is_there() -> None:
    clock = FakeClock()
    assert ids(Outbox({}).add(message(clock)).unheard) == ["m1"]
    assert ids(Outbox(ONE).add(message(clock, to=("nobody",))).unheard) == ["m1"]


def test_after_a_day_a_message_is_given_up() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock, urgent=True))
    batch = box.next("oncall/0", clock.now())
    clock.advance(timedelta(hours=24))
    assert box.done("oncall/0", batch, "no", clock.now()).rows == (DropMessage(id="m1"),)
    assert box.dropped == 1


def test_the_rate_of_ordinary_messages_is_bounded_and_pages_go_past_it() -> None:
    clock, box = FakeClock(), Outbox(ONE, Pace(burst=2, digest_at=100))
    for number in range(1, 5):
        box.add(message(clock, number))
    clock.advance(2 * SECOND)
    for _ in range(2):
        box.done("oncall/0", box.next("oncall/0", clock.now()), None, clock.now())
    assert box.next("oncall/0", clock.now()) == ()
    wait = box.wait("oncall/0", clock.now())
    assert wait is not None
    assert SECOND < wait <= 30 * SECOND
    box.add(message(clock, 9, urgent=True))
    assert ids(box.next("oncall/0", clock.now())) == ["m9"]


def test_pages_have_a_cap_too() -> None:
    clock, box = FakeClock(), Outbox(ONE, Pace(burst=0, urgent_burst=3, digest_at=100))
    for number in range(1, 6):
        box.add(message(clock, number, urgent=True))
    sent = 0
    while batch := box.next("oncall/0", clock.now()):
        box.done("oncall/0", batch, None, clock.now())
        sent += len(batch)
    assert sent == 3


def test_what_piled_up_behind_a_dead_server_goes_as_one_digest() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock))
    clock.advance(2 * SECOND)
    box.done("oncall/0", box.next("oncall/0", clock.now()), "no", clock.now())
    for number in range(2, 30):
        box.add(message(clock, number))
    clock.advance(60 * SECOND)
    assert len(box.next("oncall/0", clock.now())) == 29


def test_an_outlet_that_cannot_be_opened_leaves_its_messages_to_the_others() -> None:
    clock, box = FakeClock(), Outbox(TWO)
    box.add(message(clock, 1))
    box.add(message(clock, 2, to=("chat",)))
    outcome = box.close("chat/0")
    assert ids(outcome.unheard) == ["m2"]
    assert DropMessage(id="m2") in outcome.rows
    clock.advance(2 * SECOND)
    assert ids(box.next("oncall/0", clock.now())) == ["m1"]


def test_a_reload_moves_what_waits_to_the_new_outlets_of_its_name() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock, urgent=True))
    box.retarget({"oncall": ["oncall/0", "oncall/1"]})
    assert ids(box.next("oncall/0", clock.now())) == ["m1"]
    box.retarget({"oncall": ["oncall/1"]})
    assert ids(box.next("oncall/1", clock.now())) == ["m1"]


def test_what_waits_for_a_name_that_a_reload_removed_is_left_to_the_last_sink() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock))
    outcome = box.retarget({"chat": ["chat/0"]})
    assert ids(outcome.unheard) == ["m1"]
    assert outcome.rows == (DropMessage(id="m1"),)


def test_a_late_success_is_not_repeated() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    box.add(message(clock, urgent=True))
    batch = box.next("oncall/0", clock.now())
    box.done("oncall/0", batch, "no answer", clock.now())
    assert box.late("oncall/0", batch, clock.now()).rows == (DropMessage(id="m1"),)
    assert box.empty


def test_the_spool_is_bounded_and_pages_outlive_the_rest() -> None:
    clock, box = FakeClock(), Outbox(ONE, Pace(most=3))
    box.add(message(clock, 1, urgent=True))
    for number in range(2, 6):
        rows = box.add(message(clock, number)).rows
    assert DropMessage(id="m3") in rows
    assert box.dropped == 2
    assert box.states()[0].waiting == 3


def test_what_was_spooled_comes_back_after_a_restart() -> None:
    clock, box = FakeClock(), Outbox(ONE)
    [row] = box.add(message(clock, fields={"incident": 1})).rows
    assert isinstance(row, SaveMessage)
    clock.reboot()
    again = Outbox(ONE)
    assert again.restore([row]) == ()
    [got] = again.next("oncall/0", clock.now())
    assert got == from_json(Message, row.payload["message"])


def test_a_spool_row_that_makes_no_sense_is_dropped() -> None:
    rows = [SaveMessage(id="x", payload={"message": 3}), SaveMessage(id="y", payload={})]
    assert Outbox(ONE).restore(rows) == (DropMessage(id="x"), DropMessage(id="y"))


def test_a_spooled_message_for_a_name_that_has_gone_is_dropped() -> None:
    clock = FakeClock()
    [row] = Outbox({"old": ["old/0"]}).add(message(clock)).rows
    assert isinstance(row, SaveMessage)
    assert Outbox(ONE).restore([row]) == (DropMessage(id="m1"),)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("pass"), st.integers(0, 400), st.just(False)),
        st.tuples(st.just("send"), st.integers(0, 1), st.booleans()),
    ),
    max_size=60,
)


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_nothing_is_ever_lost_or_delivered_twice_to_one_outlet(events: list[tuple[str, int, bool]]) -> None:
    clock, box = FakeClock(), Outbox(TWO)
    outlets = ("oncall/0", "chat/0")
    added: set[str] = set()
    got: dict[str, list[str]] = {outlet: [] for outlet in outlets}

    def send(outlet: str, ok: bool, now: Instant) -> bool:
        batch = box.next(outlet, now)
        box.done(outlet, batch, None if ok else "no", now)
        if ok:
            got[outlet] += ids(batch)
        return bool(batch)

    for place, (event, number, flag) in enumerate(events):
        if event == "add":
            added.add(f"e{place}")
            box.add(message(clock, number, id=f"e{place}", urgent=flag))
        elif event == "pass":
            clock.advance(number * SECOND)
        else:
            send(outlets[number], flag, clock.now())
    for outlet in outlets:
        while (wait := box.wait(outlet, clock.now())) is not None:
            clock.advance(wait)
            assert send(outlet, True, clock.now()), "wait() promised something"
    assert box.empty
    for outlet in outlets:
        assert sorted(got[outlet]) == sorted(added)
