"""Bursts: anchored at the first finding, on the findings' own time, in a bounded table."""

from __future__ import annotations

from datetime import timedelta

from chronicle import E5, START
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.coalesce import Coalescer
from bandog.domain.model import Finding, Instant, Severity


def found(seconds: float = 0, *, subject: str = E5, burst: str = "", boot: str = "boot-1", **fields: object) -> Finding:
    at = START.plus(timedelta(seconds=seconds))
    at = Instant(boot_id=boot, boottime=at.boottime, utc=at.utc, synced=True)
    window = timedelta(seconds=float(str(fields.pop("window", 5))))
    return Finding(kind="nvidia.xid", subject=subject, severity=Severity.ERROR, at=at, burst=burst, window=window)


def test_the_window_is_anchored_at_the_first_and_does_not_slide() -> None:
    table = Coalescer()
    begins = [table.place(found(second), True, START)[1] for second in (0, 3, 5, 6, 9, 11.5)]
    assert begins == [True, False, False, True, False, True]


def test_a_finding_may_ask_for_a_longer_window() -> None:
    table = Coalescer()
    begins = [table.place(found(second, window=600), True, START)[1] for second in (0, 45, 599, 601)]
    assert begins == [True, False, False, True]


def test_subject_burst_boot_and_the_right_to_act_tell_events_apart() -> None:
    table = Coalescer()
    assert table.place(found(), True, START)[1]
    assert table.place(found(burst="pid 7"), True, START)[1]
    assert table.place(found(subject="gpu:other"), True, START)[1]
    assert table.place(found(), False, START)[1]
    assert not table.place(found(), True, START)[1]
    assert table.place(found(boot="boot-2"), True, START)[1]


def test_a_line_read_late_is_an_event_of_its_own_and_moves_no_window() -> None:
    table = Coalescer()
    table.place(found(100), True, START)
    assert table.place(found(50), True, START)[1]
    assert not table.place(found(103), True, START)[1]


def test_what_has_cleared_begins_anew() -> None:
    table = Coalescer()
    table.place(found(), True, START)
    table.forget(found())
    assert table.place(found(1), True, START)[1]


def test_old_bursts_are_forgotten() -> None:
    table = Coalescer()
    table.place(found(), True, START)
    table.prune(START.plus(timedelta(seconds=60)))
    assert len(table) == 1
    table.prune(START.plus(timedelta(seconds=66)))
    assert len(table) == 0


def test_the_table_is_bounded() -> None:
    table = Coalescer()
    for number in range(20_000):
        table.place(found(subject=f"task:{number % 2000}", burst=str(number)), True, START)
    assert len(table) <= 512 * 32


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from("ab"), st.booleans()), max_size=60))
def test_events_of_one_key_that_begin_in_order_are_a_window_apart(
    seen: list[tuple[float, str, bool]],
) -> None:
    table = Coalescer()
    last: dict[tuple[str, bool], float] = {}
    for seconds, burst, acting in sorted(seen):
        _, begins = table.place(found(seconds, burst=burst), acting, START)
        if begins:
            assert seconds - last.get((burst, acting), -1e9) > 5 - 1e-5
            last[(burst, acting)] = seconds
