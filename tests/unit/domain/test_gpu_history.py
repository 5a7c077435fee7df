"""A card's history counts what repeats and tells months in one line."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from bandog.domain import gpu_history
from bandog.domain.gpus import GpuEvent
from bandog.testing import FakeClock
from samples import NOW, finding


def xid(code: int, **after: float) -> GpuEvent:
    return GpuEvent(uuid="GPU-5a", at=NOW.plus(timedelta(**after)), what="xid", data={"xid": code, "count": 1})


def told(*events: GpuEvent) -> tuple[GpuEvent, ...]:
    history: tuple[GpuEvent, ...] = ()
    for event in events:
        history, _ = gpu_history.add(history, event)
    return history


def test_lines_of_one_burst_are_one_event() -> None:
    history = told(xid(94), xid(94, seconds=1), xid(94, seconds=4))
    assert [one.data["count"] for one in history] == [1]


def test_events_of_an_hour_share_a_line_that_is_written_again() -> None:
    history = told(xid(63))
    history, line = gpu_history.add(history, xid(63, minutes=10))
    assert line is not None and line.at == NOW and line.data["count"] == 2
    history, line = gpu_history.add(history, xid(63, minutes=10, seconds=3))
    assert line is None
    history, line = gpu_history.add(history, xid(63, hours=2))
    assert line is not None and line.data["count"] == 1
    assert len(history) == 2


def test_another_xid_and_another_boot_have_lines_of_their_own() -> None:
    clock = FakeClock()
    first = GpuEvent(uuid="GPU-5a", at=clock.now(), what="xid", data={"xid": 94, "count": 1})
    clock.reboot()
    later = GpuEvent(uuid="GPU-5a", at=clock.now(), what="xid", data={"xid": 94, "count": 1})
    assert len(told(first, xid(63), later)) == 3


def test_the_line_names_what_happened_how_often_and_since_when() -> None:
    history = told(xid(63), xid(63, days=10), xid(94, days=11), xid(63, days=20))
    assert gpu_history.line(history) == "3 Xid 63 since 30 Nov 2026, 1 Xid 94 since 11 Dec 2026"
    assert gpu_history.line(()) == ""
    rest = (
        GpuEvent(uuid="GPU-5a", at=NOW, what="remapped", data={"count": 2, "total": 7}),
        GpuEvent(uuid="GPU-5a", at=NOW, what="excluded", data={"by": "ann"}),
        GpuEvent(uuid="GPU-5a", at=NOW, what="moved", data={}),
    )
    assert gpu_history.line(rest) == "2 remapped rows since 30 Nov 2026, 1 exclusion since 30 Nov 2026"


def test_only_a_real_xid_of_a_real_line_enters_the_history() -> None:
    made = gpu_history.of_finding(finding(), "GPU-5a")
    assert made is not None and made.data["xid"] == 94
    for odd in (finding(drill=True), finding(raised=False), finding(kind="gpu.lost"), finding(facts={"xid": "94"})):
        assert gpu_history.of_finding(odd, "GPU-5a") is None
    assert gpu_history.of_finding(finding(facts={"xid": 94, "glued": True}), "GPU-5a") is None


@given(st.lists(st.tuples(st.sampled_from([13, 63, 94]), st.floats(-100, 90_000)), max_size=300))
def test_a_flood_stays_within_its_bounds_and_never_raises(stream: list[tuple[int, float]]) -> None:
    history = told(*(xid(code, seconds=after) for code, after in stream))
    assert len(history) <= gpu_history.KEPT
    assert sum(one.data["count"] for one in history) <= len(stream)
    assert gpu_history.line(history).count("Xid") == len({one.data["xid"] for one in history})
