"""The inventory: what a look tells stays, orders hold at once, and everything that changed is handed out once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog import GpuLook, Look, UnknownGpu
from bandog.domain import cards
from bandog.services.inventory import FRESH, WRITE_SEEN, Inventory
from bandog.store.encode import encode
from bandog.store.rows import AddGpuEvent, SaveGpu
from bandog.testing import FakeClock
from samples import finding

SLOTS = ("0000:17:00.0", "0000:41:00.0", "0000:e5:00.0", "10000:01:00.0")


def gpu(number: int, **fields: Any) -> GpuLook:
    base: dict[str, Any] = {"uuid": f"GPU-{number}{number}", "address": SLOTS[number], "serial": f"16530{number}"}
    return GpuLook(**{**base, **fields})


class Host:
    """A clock and an inventory that counts how often it has news."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.news = 0
        self.inventory = Inventory(self.clock, changed=self.count)

    def count(self) -> None:
        self.news += 1

    def look(self, *gpus: GpuLook, **fields: Any) -> None:
        self.inventory.take(Look(at=self.clock.now(), gpus=gpus, **fields))

    def usable(self) -> list[str]:
        return [one.address for one in self.inventory.usable()]

    def xid(self, code: int, address: str = SLOTS[2], **facts: Any) -> None:
        self.inventory.seen(finding(at=self.clock.now(), subject=f"gpu:{address}", facts={"xid": code, **facts}))

    def restart(self) -> None:
        """What the store would keep goes to a new inventory, as at a start of the agent."""
        drained = self.inventory.drain()
        self.inventory = Inventory(self.clock, known=drained.cards, events=drained.events, changed=self.count)


@pytest.fixture
def host() -> Host:
    one = Host()
    one.look(*(gpu(number) for number in (2, 0, 3, 1)))
    return one


def test_cards_come_in_pci_order(host: Host) -> None:
    assert tuple(host.usable()) == SLOTS
    assert tuple(one.slot for one in host.inventory.known()) == SLOTS


@pytest.mark.parametrize(
    "state",
    [{"lost": True}, {"uuid": ""}, {"remap_failed": True}, {"recovery": "reset"}, {"recovery": "drain-and-reset"}],
    ids=str,
)
def test_a_card_that_is_not_fit_is_not_usable(host: Host, state: dict[str, Any]) -> None:
    host.look(gpu(0), gpu(1), gpu(2, **state))
    assert host.usable() == list(SLOTS[:2])


def test_what_the_driver_does_not_tell_condemns_nothing(host: Host) -> None:
    host.look(gpu(2, recovery=None, remap_failed=None, remap_pending=True, errors={"links": "Not Supported"}))
    assert host.usable() == [SLOTS[2]]


def test_an_old_look_or_one_without_an_answer_makes_nothing_usable(host: Host) -> None:
    host.clock.advance(FRESH + timedelta(seconds=1))
    assert host.usable() == []
    host.look(gpu(0))
    assert host.usable() == [SLOTS[0]]
    host.look(error="Driver/library version mismatch", mismatch=True)
    assert host.usable() == []
    assert len(host.inventory.known()) == 4
    assert host.inventory.answered() is not None


def test_a_round_that_was_given_up_and_comes_back_late_changes_nothing(host: Host) -> None:
    late = Look(at=host.clock.now(), gpus=(gpu(0),))
    host.clock.advance(timedelta(minutes=1))
    host.look(gpu(0), gpu(1))
    host.inventory.take(late)
    assert host.usable() == list(SLOTS[:2])


def test_an_excluded_card_is_known_and_not_usable_also_after_a_restart_and_a_boot(host: Host) -> None:
    card = host.inventory.exclude("00000000:E5:00.0", reason="second Xid 94", by="xid", xid=94, incident=7)
    assert card.exclusion is not None and card.exclusion.state == "out" and card.exclusion.incident == 7
    for _ in range(2):
        assert SLOTS[2] not in host.usable()
        host.restart()
        host.clock.reboot()
        host.look(*(gpu(number) for number in range(4)))
    assert [one.slot for one in host.inventory.awaiting_check()] == [SLOTS[2]]


def test_an_exclusion_follows_the_card_and_not_the_slot(host: Host) -> None:
    host.inventory.exclude(SLOTS[2], reason="r", by="xid", xid=79)
    host.look(gpu(0), gpu(2, address=SLOTS[1]), gpu(1, address=SLOTS[2]))
    assert host.usable() == [SLOTS[0], SLOTS[2]]
    assert host.inventory.find(SLOTS[1]).uuid == "GPU-22"
    assert [one.what for one in host.inventory.history("GPU-22")] == ["seen", "excluded", "moved"]


def test_the_longest_reasons_of_all_exclusions_still_fit_into_a_row(host: Host) -> None:
    for _ in range(cards.MOST_EXCLUSIONS):
        host.inventory.exclude(SLOTS[2], reason="\U0001f525" * 60_000, by="a" * 60_000)
        host.inventory.give_back(SLOTS[2], by="ann")
    drained = host.inventory.drain()
    for row in (*(SaveGpu(card=one) for one in drained.cards), *(AddGpuEvent(event=one) for one in drained.events)):
        encode(row)


def test_a_probation_that_is_over_ends_without_a_look(host: Host) -> None:
    host.inventory.exclude(SLOTS[2], reason="r", by="xid", xid=94)
    host.clock.reboot()
    host.inventory.on_probation(SLOTS[2])
    host.clock.advance(timedelta(days=8))
    host.inventory.settle()
    assert host.inventory.find(SLOTS[2]).exclusion is None
    assert host.inventory.history("GPU-22")[-1].what == "probation-ended"


@pytest.mark.parametrize(
    "name", ["0000:e5:00.0", "0000:E5:00", "e5:00.0", "E5:00", "00000000:E5:00.0", "GPU-22", "gpu-22 "]
)
def test_a_card_is_found_by_any_spelling(host: Host, name: str) -> None:
    assert host.inventory.find(name).uuid == "GPU-22"


def test_a_name_that_is_no_card_gets_one_line_with_the_nearest(host: Host) -> None:
    with pytest.raises(UnknownGpu) as caught:
        host.inventory.find("0000:e6:00.0")
    assert str(caught.value).startswith("there is no GPU 0000:e6:00.0; nearest: 0000:e5:00.0 (GPU-22), ")
    with pytest.raises(UnknownGpu, match="2 is an index, and indices shift"):
        host.inventory.find("2")
    with pytest.raises(UnknownGpu, match="none has been seen on this host yet"):
        Inventory(FakeClock()).find("0000:e5:00.0")


@given(st.text(max_size=200))
def test_any_text_is_a_card_or_one_printable_line(name: str) -> None:
    host = Host()
    host.look(gpu(0), gpu(1))
    try:
        host.inventory.find(name)
    except UnknownGpu as error:
        assert str(error).isprintable()


def test_xids_enter_the_history_of_the_card_in_the_slot(host: Host) -> None:
    for _ in range(3):
        host.xid(63)
        host.clock.advance(timedelta(days=1))
    host.xid(94, glued=True)
    host.xid(94, address="0000:99:00.0")
    assert [one.data.get("xid") for one in host.inventory.history("GPU-22")[1:]] == [63, 63, 63]


def test_what_changed_is_handed_out_once_and_taken_back_if_the_disk_refuses(host: Host) -> None:
    first = host.inventory.drain()
    assert len(first.cards) == 4 and len(first.events) == 4
    assert host.inventory.drain().cards == ()
    host.inventory.exclude(SLOTS[0], reason="r", by="ann")
    refused = host.inventory.drain()
    host.inventory.give_back(SLOTS[0], by="ann")
    host.inventory.unwritten(refused)
    again = host.inventory.drain()
    assert [one.exclusion for one in again.cards] == [None], "the newer state, not the refused one"
    assert [one.what for one in again.events] == ["returned", "excluded"]


def test_that_a_card_was_seen_again_is_written_once_an_hour(host: Host) -> None:
    host.inventory.drain()
    news = host.news
    for _ in range(6 * 59):
        host.clock.advance(timedelta(seconds=10))
        host.look(*(gpu(number) for number in range(4)))
    assert host.news == news
    host.clock.advance(WRITE_SEEN)
    host.look(*(gpu(number) for number in range(4)))
    assert len(host.inventory.drain().cards) == 4


def test_a_storm_of_one_xid_is_no_storm_of_writes(host: Host) -> None:
    host.inventory.drain()
    news = host.news
    for _ in range(1000):
        host.clock.advance(timedelta(milliseconds=100))
        host.xid(31)
    assert host.news == news + 1
    assert len(host.inventory.drain().events) == 1


def test_a_card_that_is_gone_is_expected_no_more_once_a_person_says_so(host: Host) -> None:
    host.look(gpu(0))
    assert all(one.expected for one in host.inventory.known())
    host.inventory.forget(SLOTS[2], by="ann")
    assert not host.inventory.find("GPU-22").expected
    host.look(gpu(0), gpu(2))
    assert host.inventory.find("GPU-22").expected


def test_workers_and_the_loop_may_call_at_the_same_time(host: Host) -> None:
    rounds = 200

    def looks() -> None:
        for number in range(rounds):
            host.look(gpu(0, ecc_corrected=number), gpu(1), gpu(2))

    def orders() -> None:
        for _ in range(rounds):
            host.inventory.exclude(SLOTS[0], reason="r", by="ann")
            host.inventory.give_back(SLOTS[0], by="ann")

    def reads() -> None:
        for _ in range(rounds):
            host.usable()
            host.inventory.drain()

    jobs: tuple[Callable[[], None], ...] = (looks, orders, reads)
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert host.inventory.find(SLOTS[0]).exclusion is None
    assert len(host.inventory.history("GPU-00")) <= 120
