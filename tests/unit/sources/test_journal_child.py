"""The journal read in a process of its own, through the real runner of children."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from journal_fixture import BOOT, FLOOD_USEC, UNIT, flood_line, flood_usec, unpack

from bandog.host.child import Children
from bandog.host.paths import Paths
from bandog.host.site import ChildOutcome
from bandog.sources.bookmark import Neighbour, text_digest
from bandog.sources.gap import Gap
from bandog.sources.journal import JournalUnavailable
from bandog.sources.journal_child import kernel_gaps, kernel_history, unit_log


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    unpack(tmp_path)
    return Paths(root=tmp_path)


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("child"):
            thread.join(2)


def flood_gap(first: int, last: int) -> Gap:
    """Return the gap in which lines `first` to `last` of the flood are missing; numbers begin at 1000."""

    def neighbour(number: int) -> Neighbour:
        return Neighbour(seq=1000 + number, usec=flood_usec(number), digest=text_digest(flood_line(number)))

    return Gap(first=1000 + first, last=1000 + last, before=neighbour(first - 1), after=neighbour(last + 1))


def test_gaps_are_refilled_exactly_with_what_is_wanted(paths: Paths, children: Children) -> None:
    gaps = [flood_gap(10, 40), flood_gap(50, 150)]
    one, two = kernel_gaps(children.run, paths, gaps, boot_id=BOOT, shift=timedelta(), needles=[b"NVRM: Xid"])
    assert (one.found, one.whole, one.numbers) == (31, True, (1025,))
    assert [entry.text for entry in one.wanted] == [flood_line(25)]
    assert one.wanted[0].usec == FLOOD_USEC + 25_000
    assert (two.found, two.numbers) == (101, (1075, 1125))


def test_without_needles_every_record_of_the_kernel_comes(paths: Paths, children: Children) -> None:
    (missing,) = kernel_gaps(children.run, paths, [flood_gap(55, 65)], boot_id=BOOT, shift=timedelta(), needles=None)
    assert missing.found == 11
    assert len(missing.wanted) == 10, "one of them was written by a process"
    assert 1060 not in missing.numbers


def test_the_clocks_drift_is_allowed_for(paths: Paths, children: Children) -> None:
    """The journal's own stamps are CLOCK_MONOTONIC; the kernel's may be minutes behind it."""
    (missing,) = kernel_gaps(
        children.run, paths, [flood_gap(10, 20)], boot_id=BOOT, shift=timedelta(seconds=-30), needles=None
    )
    assert missing.found == 11


def test_the_kernel_lines_around_an_event(paths: Paths, children: Children) -> None:
    entries = kernel_history(
        children.run,
        paths,
        boot_id=BOOT,
        since_usec=flood_usec(20),
        until_usec=flood_usec(25),
        most=3,
    )
    assert [entry.text for entry in entries] == [flood_line(number) for number in (23, 24, 25)]
    assert len(kernel_history(children.run, paths, boot_id=BOOT, most=1000)) == 199 + 3


def test_the_log_of_a_unit(paths: Paths, children: Children) -> None:
    lines = unit_log(children.run, paths, UNIT, lines=2)
    assert [line.text for line in lines] == ["serving 4", "vllm-qwen.service: Main process exited"]


def test_a_host_without_a_journal_is_told_so(tmp_path: Path, children: Children) -> None:
    with pytest.raises(JournalUnavailable, match="no journal to read in"):
        unit_log(children.run, Paths(root=tmp_path), UNIT)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (ChildOutcome(code=None, timed_out=True), "no answer within 10 s"),
        (ChildOutcome(code=None, stuck=True), "no answer within 10 s"),
        (ChildOutcome(code=-7), "ended with -7"),
        (ChildOutcome(code=1, err=b"Traceback\nMemoryError: no\n"), "ended with 1: MemoryError: no"),
        (ChildOutcome(code=0, out=b'{"answer": [7], "error": null}'), "answered something else"),
        (ChildOutcome(code=0, out=b'{"answer": 7, "error": null}'), "ended with 0"),
        (ChildOutcome(code=0, out=b'[{"answer": [], "error": nul'), "ended with 0"),
    ],
)
def test_a_child_that_fails_is_a_reason_never_a_crash(tmp_path: Path, outcome: ChildOutcome, why: str) -> None:
    def child(argv: Sequence[str], *, deadline: timedelta, stdin: bytes = b"", limit: int = 0) -> ChildOutcome:
        return outcome

    with pytest.raises(JournalUnavailable, match=why):
        unit_log(child, Paths(root=tmp_path), UNIT)
