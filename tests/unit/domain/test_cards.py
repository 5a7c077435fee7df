"""A card that is out stays out until a reboot and a check, or a person; final is final."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain import cards
from bandog.domain.codec import from_json, to_json
from bandog.domain.gpus import Exclusion, KnownGpu
from bandog.domain.model import Instant
from bandog.testing import FakeClock


class Card:
    """One card and a clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        now = self.clock.now()
        self.card = KnownGpu(uuid="GPU-5a", slot="0000:e5:00.0", first_seen=now, last_seen=now)

    @property
    def now(self) -> Instant:
        return self.clock.now()

    @property
    def state(self) -> str:
        return self.card.exclusion.state if self.card.exclusion is not None else "in use"

    def fault(self, xid: int = 94, kind: str = "nvidia.xid") -> str:
        new = Exclusion(reason=f"Xid {xid}", by="policy", since=self.now, xid=xid, kind=kind)
        self.card = cards.exclude(self.card, new, self.now)
        return self.state

    def person(self) -> str:
        self.card = cards.exclude(self.card, Exclusion(reason="noise", by="ann", since=self.now), self.now)
        return self.state

    def back(self) -> str:
        self.card = cards.give_back(self.card, "ann", self.now)
        return self.state

    def check(self) -> str:
        self.card = cards.pass_check(self.card, self.now)
        return self.state

    def boot(self) -> str:
        self.clock.reboot()
        self.card = cards.settle(self.card, self.now)
        return self.state

    def wait(self, **duration: float) -> str:
        self.clock.advance(timedelta(**duration))
        self.card = cards.settle(self.card, self.now)
        return self.state


@pytest.fixture
def card() -> Card:
    return Card()


def test_the_story_of_the_dying_gpu(card: Card) -> None:
    assert card.fault() == "out"
    assert card.check() == "out", "no check brings it back without a reboot"
    assert card.boot() == "out"
    assert card.check() == "probation"
    assert card.card.usable
    assert card.fault() == "final"
    assert card.boot() == "final"
    assert card.check() == "final"
    assert not card.card.usable
    assert card.back() == "in use"


def test_a_probation_of_seven_days_ends_by_itself_and_not_before(card: Card) -> None:
    card.fault()
    card.boot()
    card.check()
    assert card.wait(days=6, hours=23) == "probation"
    assert card.wait(hours=1) == "in use"


def test_the_memory_comes_back_once_even_months_later(card: Card) -> None:
    card.fault(94)
    card.boot()
    card.check()
    assert card.wait(days=90) == "in use"
    assert card.fault(48) == "final"


def test_another_fault_than_the_memorys_may_come_back_again(card: Card) -> None:
    card.fault(79)
    card.boot()
    card.check()
    assert card.wait(days=1) == "in use"
    assert card.fault(79) == "out"


def test_any_fault_on_probation_is_final(card: Card) -> None:
    card.fault(94)
    card.boot()
    card.check()
    assert card.fault(74) == "final"


def test_a_memory_fault_that_returns_after_the_reboot_shows_that_it_did_not_help(card: Card) -> None:
    assert card.fault(94) == "out"
    assert card.fault(94) == "out", "one storm is one exclusion"
    assert len(card.card.exclusions) == 1
    card.boot()
    assert card.fault(94) == "final"


def test_a_third_exclusion_in_four_weeks_makes_a_lemon_which_only_a_person_brings_back(card: Card) -> None:
    for _ in range(2):
        assert card.fault(79) == "out"
        card.boot()
        card.check()
        card.wait(days=2)
    assert not card.card.lemon
    assert card.fault(79) == "final"
    assert card.card.lemon
    assert card.back() == "in use"
    assert card.card.lemon


def test_exclusions_far_apart_make_no_lemon(card: Card) -> None:
    for _ in range(4):
        assert card.fault(79) == "out"
        card.boot()
        card.check()
        card.wait(days=30)
    assert not card.card.lemon


def test_persons_exclusions_make_no_lemon_and_no_check_ends_them(card: Card) -> None:
    for _ in range(4):
        assert card.person() == "out"
        card.boot()
        assert card.check() == "out"
        card.back()
    assert not card.card.lemon


def test_a_person_takes_over_what_a_fault_began(card: Card) -> None:
    card.fault()
    assert card.person() == "out"
    card.boot()
    assert card.check() == "out"
    assert card.fault() == "out"
    assert [one.by for one in card.card.exclusions] == ["policy", "ann"]


def test_a_person_who_returns_a_card_lets_it_start_anew(card: Card) -> None:
    card.fault()
    card.boot()
    card.check()
    card.back()
    card.wait(days=60)
    assert card.fault() == "out"


def test_without_a_synchronised_clock_a_boot_proves_no_more_than_its_uptime(card: Card) -> None:
    card.fault()
    card.boot()
    card.check()
    card.clock.reboot(down=timedelta(days=30), synced=False)
    assert card.wait(days=6) == "probation"
    assert card.wait(days=1) == "in use"


STEPS = st.lists(
    st.sampled_from(["memory", "link", "remap", "person", "back", "check", "boot", "dark boot", "hour", "week"]),
    max_size=40,
)


@given(STEPS)
def test_no_order_of_events_loses_a_final_exclusion_or_uses_a_card_that_is_out(steps: list[str]) -> None:
    card = Card()
    checked = True  # since the last exclusion: a reboot and a passed check, or a person's word
    booted = False
    for step in steps:
        before = card.state
        match step:
            case "memory":
                card.fault(94)
            case "link":
                card.fault(74)
            case "remap":
                card.card = cards.exclude(
                    card.card,
                    Exclusion(reason="r", by="policy", since=card.now, kind="gpu.row-remap-failed"),
                    card.now,
                )
            case "person":
                card.person()
            case "back":
                card.back()
                checked = True
            case "check":
                card.check()
                checked = checked or (booted and before != "final")
            case "boot":
                card.boot()
                booted = True
            case "dark boot":
                card.clock.reboot(down=timedelta(days=400), synced=False)
                card.card = cards.settle(card.card, card.now)
                booted = True
            case "hour":
                card.wait(hours=1)
            case "week":
                card.wait(days=7)
        if step in ("memory", "link", "remap", "person"):
            assert card.state in ("out", "final")
            if card.card.exclusion is not None and card.card.exclusion.since == card.now:
                checked, booted = False, False
        if before == "final" and step != "back":
            assert card.state == "final"
        assert card.card.usable == (card.state in ("in use", "probation"))
        if card.card.usable:
            assert checked, "in use again without a reboot and a check, or a person"
        assert sum(one.state != "ended" for one in card.card.exclusions) <= 1
        assert from_json(KnownGpu, to_json(card.card)) == card.card


@given(st.integers(1, 200))
def test_the_list_of_exclusions_stays_bounded(count: int) -> None:
    card = Card()
    for _ in range(count):
        card.person()
        card.back()
    assert len(card.card.exclusions) <= cards.MOST_EXCLUSIONS
    assert dataclasses.replace(card.card, exclusions=()).usable
