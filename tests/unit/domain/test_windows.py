"""Maintenance windows on the wall clock of their own zone."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.windows import DAYS, Window

BERLIN = ZoneInfo("Europe/Berlin")


def window(days: str, begin: time, until: time, zone: ZoneInfo = BERLIN) -> Window:
    return Window(name="w", days=tuple(days.split()), begin=begin, until=until, zone=zone)


def at(text: str) -> datetime:
    """A wall-clock time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC)


def test_it_is_open_from_its_begin_up_to_its_end_on_its_days() -> None:
    sat = window("sat", time(2), time(5))
    assert not sat.is_open(at("2026-08-01 01:59"))
    assert sat.is_open(at("2026-08-01 02:00"))  # a Saturday
    assert not sat.is_open(at("2026-08-01 05:00"))
    assert not sat.is_open(at("2026-08-02 03:00"))


def test_past_midnight_it_belongs_to_the_day_on_which_it_began() -> None:
    sat = window("sat", time(22), time(5))
    assert sat.is_open(at("2026-08-01 23:00"))
    assert sat.is_open(at("2026-08-02 04:59"))  # Sunday morning
    assert not sat.is_open(at("2026-08-01 04:00"))  # Saturday morning is Friday's
    assert not sat.is_open(at("2026-08-02 22:30"))


def test_it_moves_with_daylight_saving() -> None:
    daily = window(" ".join(DAYS), time(2), time(4))
    assert daily.is_open(datetime(2026, 1, 10, 1, 30, tzinfo=UTC))
    assert not daily.is_open(datetime(2026, 7, 10, 2, 30, tzinfo=UTC))
    assert daily.is_open(datetime(2026, 7, 10, 0, 30, tzinfo=UTC))


def test_the_next_opening_is_now_while_it_is_open_and_else_its_next_begin() -> None:
    sat = window("sat", time(2), time(5))
    assert sat.next_opening(at("2026-08-01 03:00")) == at("2026-08-01 03:00")
    assert sat.next_opening(at("2026-08-01 06:00")) == at("2026-08-08 02:00")
    assert sat.next_opening(at("2026-07-30 12:00")) == at("2026-08-01 02:00")


_TIMES = st.times().map(lambda one: one.replace(second=0, microsecond=0))


@given(
    st.lists(st.sampled_from(DAYS), min_size=1, unique=True),
    _TIMES,
    _TIMES,
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),
)
def test_the_next_opening_comes_within_eight_days_and_not_in_the_past(
    days: list[str], begin: time, until: time, zone: str, moment: datetime
) -> None:
    one = window(" ".join(days), begin, until, ZoneInfo(zone))
    now = moment.replace(tzinfo=UTC)
    opening = one.next_opening(now)
    assert now <= opening.astimezone(UTC) <= now + timedelta(days=8)
