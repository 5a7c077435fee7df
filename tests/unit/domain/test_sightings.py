"""A card is its UUID: slots change, cards are replaced, and the first look defines what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bandog.domain import sightings
from bandog.domain.gpus import GpuEvent, GpuLook, KnownGpu, Look
from bandog.testing import FakeClock

NOW = FakeClock().now()
A, B = "0000:41:00.0", "0000:e5:00.0"


def gpu(uuid: str, address: str, **fields: Any) -> GpuLook:
    return GpuLook(uuid=uuid, address=address, **fields)


def look(*gpus: GpuLook, minutes: int = 0) -> Look:
    return Look(at=NOW.plus(timedelta(minutes=minutes)), gpus=gpus)


def happenings(found: sightings.Sighting) -> list[tuple[str, str]]:
    return [(one.uuid, one.what) for one in found.events]


def known(*gpus: GpuLook) -> Mapping[str, KnownGpu]:
    return sightings.sight({}, look(*gpus)).cards


def test_the_first_look_defines_what_is_expected() -> None:
    found = sightings.sight({}, look(gpu("one", A, serial="7"), gpu("two", B)))
    assert {uuid: (card.slot, card.expected) for uuid, card in found.cards.items()} == {
        "one": (A, True),
        "two": (B, True),
    }
    assert found.cards["one"].serial == "7"
    assert happenings(found) == [("one", "seen"), ("two", "seen")]


def test_a_card_seen_again_changes_nothing_but_its_time() -> None:
    cards = known(gpu("one", A, serial="7"))
    found = sightings.sight(cards, look(gpu("one", A), minutes=1))
    assert found.changed == () and found.events == ()
    assert found.cards["one"].last_seen == NOW.plus(timedelta(minutes=1))
    assert found.cards["one"].serial == "7", "what the driver does not tell this time stays known"


def test_a_card_in_another_slot_is_noted_and_keeps_its_identity() -> None:
    found = sightings.sight(known(gpu("one", A)), look(gpu("one", B)))
    assert found.cards["one"].slot == B
    assert happenings(found) == [("one", "moved")]


def test_a_new_card_in_a_known_slot_replaces_the_old_one_which_is_no_longer_missing() -> None:
    found = sightings.sight(known(gpu("one", A)), look(gpu("new", A)))
    assert not found.cards["one"].expected
    assert found.cards["new"].expected
    assert happenings(found) == [("new", "seen"), ("one", "replaced"), ("new", "replaces")]


def test_a_slot_that_a_known_card_took_over_replaces_nothing() -> None:
    """With one card missing, the bus numbers of the others may shift into its place."""
    found = sightings.sight(known(gpu("one", A), gpu("two", B)), look(gpu("two", A)))
    assert found.cards["one"].expected, "it is missing, not replaced"
    assert happenings(found) == [("two", "moved")]


def test_a_new_card_where_a_moved_one_was_replaces_nothing() -> None:
    found = sightings.sight(known(gpu("one", A)), look(gpu("one", B), gpu("new", A)))
    assert found.cards["one"].expected and found.cards["new"].expected


def test_a_card_that_was_forgotten_and_is_there_is_expected_again() -> None:
    cards = sightings.sight(known(gpu("one", A)), look(gpu("new", A))).cards
    found = sightings.sight(cards, look(gpu("new", A), gpu("one", B)))
    assert found.cards["one"].expected
    assert ("one", "back") in happenings(found)


def test_a_gpu_without_a_uuid_is_nobody() -> None:
    found = sightings.sight(known(gpu("one", A)), look(gpu("", A, lost=True)))
    assert found.cards["one"].expected and found.events == ()


def test_growth_is_told_against_the_last_look_or_the_history() -> None:
    before, now = gpu("one", A, ecc_uncorrected=1, remapped=4), gpu("one", A, ecc_uncorrected=3, remapped=4)
    assert [(one.what, one.data) for one in sightings.growth((), before, now, look(now))] == [
        ("ecc-uncorrected", {"count": 2, "total": 3})
    ]
    seen = GpuEvent(uuid="one", at=NOW, what="seen", data={"ecc_uncorrected": 1, "remapped": 2})
    grown = GpuEvent(uuid="one", at=NOW, what="remapped", data={"count": 1, "total": 3})
    told = sightings.growth((seen, grown), None, now, look(now))
    assert {one.what: one.data["count"] for one in told} == {"ecc-uncorrected": 2, "remapped": 1}
    assert list(sightings.growth((), None, now, look(now))) == []
    assert list(sightings.growth((), now, gpu("one", A, ecc_uncorrected=0), look())) == [], "a reset is no growth"


LOOKS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["", "one", "two", "three"]), st.sampled_from([A, B, "0000:17:00.0"])), max_size=4
    ),
    max_size=8,
)


@given(LOOKS)
def test_no_look_loses_a_card_and_no_two_expected_cards_present_share_a_slot_they_do_not(
    rounds: list[list[tuple[str, str]]],
) -> None:
    cards: Mapping[str, KnownGpu] = {}
    for number, entries in enumerate(rounds):
        one = look(*(gpu(uuid, address) for uuid, address in entries), minutes=number)
        found = sightings.sight(cards, one)
        assert set(cards) <= set(found.cards)
        for uuid in {uuid for uuid, _ in entries if uuid}:
            assert found.cards[uuid].expected and found.cards[uuid].last_seen == one.at
        unchanged = set(cards) - set(found.changed) - {uuid for uuid, _ in entries}
        assert all(found.cards[uuid] == cards[uuid] for uuid in unchanged)
        cards = found.cards
