"""How the journal's entries fit into a gap of the kernel's log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.model import EMPTY
from bandog.sources.bookmark import Neighbour, text_digest
from bandog.sources.gap import Gap, Missing, between
from bandog.sources.journal import KernelEntry

BOOT = "ab" * 16


def entry(usec: int, text: str, *, kernel: bool = True) -> KernelEntry:
    return KernelEntry(
        text=text,
        kernel=kernel,
        usec=usec,
        monotonic=usec + 10,
        realtime=usec + 20,
        boot_id=BOOT,
        level=4,
        fields=EMPTY,
    )


def neighbour(usec: int, text: str, seq: int | None = None) -> Neighbour:
    return Neighbour(seq=seq, usec=usec, digest=text_digest(text))


LOG = [entry(number * 10, f"line {number}") for number in range(20)]


def gap(first: int, last: int) -> Gap:
    return Gap(
        first=first,
        last=last,
        before=neighbour((first - 1) * 10, f"line {first - 1}"),
        after=neighbour((last + 1) * 10, f"line {last + 1}"),
    )


def fit(entries: list[KernelEntry], hole: Gap) -> Missing:
    return between(entries, hole, wants=lambda _: True)


def texts(missing: Missing) -> list[str]:
    return [one.text for one in missing.wanted]


def test_an_exact_fit_is_numbered() -> None:
    missing = fit(LOG, gap(5, 8))
    assert texts(missing) == ["line 5", "line 6", "line 7", "line 8"]
    assert missing.numbers == (5, 6, 7, 8)
    assert (missing.found, missing.whole) == (4, True)


def test_what_a_process_wrote_counts_but_is_not_kept() -> None:
    log = [*LOG[:6], entry(60, "line 6", kernel=False), *LOG[7:]]
    missing = fit(log, gap(5, 8))
    assert texts(missing) == ["line 5", "line 7", "line 8"]
    assert missing.numbers == (5, 7, 8)
    assert missing.found == 4


def test_what_the_journal_missed_too_leaves_the_rest_without_numbers() -> None:
    missing = fit([*LOG[:6], *LOG[7:]], gap(5, 8))
    assert texts(missing) == ["line 5", "line 7", "line 8"]
    assert missing.numbers == ()
    assert (missing.found, missing.whole) == (3, True)


def test_only_what_is_wanted_is_kept_with_its_own_number() -> None:
    missing = between(LOG, gap(5, 8), wants=lambda one: one.text.endswith("7"))
    assert (texts(missing), missing.numbers, missing.found) == (["line 7"], (7,), 4)


def test_a_journal_that_lags_behind_is_not_whole() -> None:
    missing = fit(LOG[:7], gap(5, 8))
    assert texts(missing) == ["line 5", "line 6"]
    assert not missing.whole


def test_equal_neighbours_are_told_apart_by_the_distance() -> None:
    same = [entry(50, "same") for _ in range(5)]
    log = [*LOG[:5], *same, *LOG[6:]]
    hole = Gap(first=7, last=8, before=neighbour(50, "same"), after=neighbour(60, "line 6"))
    missing = fit(log, hole)
    assert (len(missing.wanted), missing.numbers) == (2, (7, 8))


def test_without_the_neighbour_before_the_stamps_decide() -> None:
    hole = Gap(first=5, last=8, before=neighbour(41, "never stored"), after=neighbour(90, "line 9"))
    missing = fit(LOG, hole)
    assert texts(missing) == ["line 5", "line 6", "line 7", "line 8"]
    assert missing.numbers == (), "close, but not proved"


def test_without_any_neighbour_before_at_most_the_gaps_length_is_taken() -> None:
    hole = Gap(first=7, last=8, before=None, after=neighbour(90, "line 9"))
    assert texts(fit(LOG, hole)) == ["line 7", "line 8"]


def test_an_empty_journal_has_nothing() -> None:
    assert fit([], gap(5, 8)) == Missing(found=0, wanted=(), numbers=(), whole=False)


@given(st.data())
def test_any_journal_yields_at_most_the_gap_and_true_numbers_when_it_is_complete(data: st.DataObject) -> None:
    stamps = sorted(data.draw(st.lists(st.integers(0, 6), min_size=4, max_size=12)))
    log = [entry(usec, data.draw(st.sampled_from("ab"))) for usec in stamps]
    first = data.draw(st.integers(1, len(log) - 2))
    last = data.draw(st.integers(first, len(log) - 2))
    hole = Gap(
        first=first,
        last=last,
        before=neighbour(log[first - 1].usec, log[first - 1].text),
        after=neighbour(log[last + 1].usec, log[last + 1].text),
    )
    complete = fit(log, hole)
    assert complete.found == hole.count
    assert complete.numbers == tuple(range(first, last + 1))
    drops = data.draw(st.sets(st.integers(0, len(log) - 1)))
    holed = fit([one for number, one in enumerate(log) if number not in drops], hole)
    assert holed.found <= hole.count
    assert len(holed.numbers) in (0, hole.count)
