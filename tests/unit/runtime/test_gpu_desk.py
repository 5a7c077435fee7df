"""The inventory joined to the daemon: rows go to the store, papers to findings, orders are kept or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bandog import Finding, GpuLook, Look
from bandog.runtime.control import OperatorError
from bandog.runtime.gpu_desk import GpuDesk
from bandog.runtime.gpu_lines import exclusion_words
from bandog.services.inventory import Inventory
from bandog.services.registry import Service
from bandog.store.errors import StoreError
from bandog.store.rows import AddEvent, AddGpuEvent, SaveGpu
from bandog.testing import FakeClock, settle
from samples import finding

A, B = "0000:41:00.0", "0000:e5:00.0"
CARD_A = GpuLook(address=A, uuid="GPU-a", serial="165a", name="NVIDIA H200", part_number="900-A", recovery="none")
CARD_B = replace(CARD_A, address=B, uuid="GPU-b", serial="165b")


class Office:
    """A desk over lists; `refuse` makes the next commits fail."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rows: list[Any] = []
        self.refuse = False
        self.desk = GpuDesk(now=self.clock.now, commit=self.commit)
        self.inventory = Inventory(self.clock, changed=self.desk.changed)
        self.desk.inventory, self.desk.locator = self.inventory, self
        self.look(CARD_A, CARD_B)

    def commit(self, *rows: Any) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.refuse:
            future.set_exception(StoreError("full"))
        else:
            self.rows += rows
            future.set_result(None)
        return future

    def holding(self, address: str) -> tuple[str, ...]:
        return ("qwen",) if address == B else ()

    def assigned(self, address: str) -> tuple[Service, ...]:
        return (Service(name="qwen", unit="qwen.service"), Service(name="llama", unit="llama.service"))

    def look(self, *gpus: GpuLook, **fields: Any) -> None:
        self.inventory.take(Look(at=self.clock.now(), gpus=gpus, **fields))

    def xid(self, code: int, **fields: Any) -> Finding:
        facts = {"xid": code, "serial": "of the line"} if fields.get("raised") else {"xid": code}
        return self.desk.annotate(finding(at=self.clock.now(), facts=facts, **fields))

    def cards(self) -> list[Any]:
        return [row.card for row in self.rows if isinstance(row, SaveGpu)]


def on_a_loop(test: Callable[[Office], Awaitable[None]]) -> None:
    async def work() -> None:
        await asyncio.wait_for(test(Office()), 20)

    asyncio.run(work())


def test_what_a_look_tells_is_written_down() -> None:
    async def test(office: Office) -> None:
        assert {one.uuid for one in office.cards()} == {"GPU-a", "GPU-b"}
        assert {row.event.what for row in office.rows if isinstance(row, AddGpuEvent)} == {"seen"}

    on_a_loop(test)


def test_an_order_from_a_worker_reaches_the_store_before_what_the_worker_commits_next() -> None:
    async def test(office: Office) -> None:
        loop = asyncio.get_running_loop()
        office.rows.clear()

        async def note() -> None:
            await office.commit("note")

        def work() -> None:
            office.inventory.exclude(B, reason="Xid 79", by="relaunch", xid=79)
            asyncio.run_coroutine_threadsafe(note(), loop).result(10)

        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():  # noqa: ASYNC110  (the other side is a thread)
            await asyncio.sleep(0.005)
        assert isinstance(office.rows[0], SaveGpu) and office.rows[0].card.exclusion is not None
        assert office.rows[-1] == "note"

    on_a_loop(test)


def test_what_the_store_refuses_is_handed_over_again() -> None:
    async def test(office: Office) -> None:
        office.rows.clear()
        office.refuse = True
        office.inventory.exclude(B, reason="r", by="xid", xid=79)
        await settle()
        office.refuse = False
        office.desk.save()
        assert [one.exclusion.state for one in office.cards()] == ["out"]

    on_a_loop(test)


def test_a_finding_about_a_card_gets_its_papers_and_history() -> None:
    async def test(office: Office) -> None:
        office.xid(63)
        office.clock.advance(timedelta(days=3))
        facts = office.xid(94).facts
        assert facts["serial"] == "165b" and facts["part_number"] == "900-A" and facts["uuid"] == "GPU-b"
        assert facts["history"] == "1 Xid 63 since 30 Nov 2026, 1 Xid 94 since 3 Dec 2026"
        assert "on_probation" not in facts

    on_a_loop(test)


def test_a_finding_on_probation_says_so_for_the_policies() -> None:
    async def test(office: Office) -> None:
        office.inventory.exclude(B, reason="r", by="xid", xid=94)
        office.clock.reboot()
        office.inventory.on_probation(B)
        assert office.xid(94).facts["on_probation"] is True

    on_a_loop(test)


def test_what_a_detector_states_itself_stays_and_others_subjects_are_left_alone() -> None:
    async def test(office: Office) -> None:
        assert office.xid(94, raised=True).facts["serial"] == "of the line"
        for odd in ({"subject": "host"}, {"subject": "gpu:0000:99:00.0"}, {"raised": False}):
            assert "part_number" not in office.xid(94, **odd).facts

    on_a_loop(test)


def test_status_says_in_words_how_each_card_is_and_who_uses_it() -> None:
    async def test(office: Office) -> None:
        office.look(CARD_A, replace(CARD_B, ecc_uncorrected=2, remap_pending=True))
        first, second = office.desk.lines()
        assert first["health"] == "works" and first["usable"] and first["serial"] == "165a"
        assert first["services"] == ["qwen", "llama"]
        assert second["health"] == "works; a remapped row waits for a reset; 2 uncorrected ECC errors"
        office.look(replace(CARD_A, lost=True))
        assert [one["health"] for one in office.desk.lines()] == ["it has fallen off the bus", "missing"]
        office.look(CARD_A, GpuLook(address=B, errors={"handle": "Unknown Error"}))
        assert office.desk.lines()[1]["health"] == "it does not answer: Unknown Error"
        assert office.desk.lines()[1]["serial"] == "165b"
        office.look(error="Driver/library version mismatch")
        assert office.desk.lines()[0]["health"] == "unknown: Driver/library version mismatch"
        office.look(hung=True)
        assert office.desk.lines()[0]["health"] == "unknown: the driver does not answer"

    on_a_loop(test)


def test_a_person_keeps_a_card_out_and_takes_it_back() -> None:
    async def test(office: Office) -> None:
        answer = await office.desk.exclude("E5:00.0".join(["0000:", ""]), "noisy fan", "ann")
        assert answer["text"] == f"kept out: {B} (GPU-b, serial 165b); qwen still uses it until its next relaunch"
        line = office.desk.lines()[1]
        assert not line["usable"] and line["exclusion"]["by"] == "ann" and line["exclusion"]["reason"] == "noisy fan"
        assert exclusion_words(line["exclusion"]) == "kept out since 2026-11-30 by ann: noisy fan"
        with pytest.raises(OperatorError, match="is kept out since 2026-11-30 by ann: noisy fan already"):
            await office.desk.exclude("gpu-B", "again", "ben")
        answer = await office.desk.give_back(B, "ben")
        assert answer["text"].startswith(f"in use again: {B}")
        assert [(row.what, row.data["by"]) for row in office.rows if isinstance(row, AddEvent)] == [
            ("gpu-excluded", "ann"),
            ("gpu-returned", "ben"),
        ]

    on_a_loop(test)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (lambda desk: desk.exclude("0000:e6:00.0", "r", "ann"), "there is no GPU 0000:e6:00.0; nearest: 0000:e5:00.0"),
        (lambda desk: desk.exclude("GPU-c", "r", "ann"), "there is no GPU GPU-c; nearest"),
        (lambda desk: desk.exclude("1", "r", "ann"), "1 is an index, and indices shift"),
        (lambda desk: desk.exclude(B, "  ", "ann"), "an exclusion needs a reason"),
        (lambda desk: desk.give_back(B, "ann"), "is not kept out"),
        (lambda desk: desk.forget(B, "ann"), "is there; forget is for a card that was taken out"),
    ],
    ids=["address", "uuid", "index", "no-reason", "not-out", "still-there"],
)
def test_an_order_that_makes_no_sense_is_one_clear_line(order: Callable[[GpuDesk], Awaitable[Any]], words: str) -> None:
    async def test(office: Office) -> None:
        with pytest.raises(OperatorError, match=words):
            await order(office.desk)

    on_a_loop(test)


def test_a_card_that_was_taken_out_is_forgotten_and_listed_as_gone() -> None:
    async def test(office: Office) -> None:
        office.look(CARD_A)
        await office.desk.forget(B, "ann")
        assert [one["address"] for one in office.desk.lines()] == [A]
        assert [one["health"] for one in office.desk.listed()] == ["works", "gone"]
        with pytest.raises(OperatorError, match="not expected already"):
            await office.desk.forget(B, "ann")

    on_a_loop(test)
