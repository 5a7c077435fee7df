"""Cards and their histories on the disk: read back whole, written again by line, kept for a year."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

from store_samples import NOW, event

from bandog.domain.gpus import Exclusion, GpuEvent, KnownGpu
from bandog.domain.model import Instant
from bandog.store import Store
from bandog.store.database import How, open_database
from bandog.store.load import GPU_EVENTS_KEPT
from bandog.store.reader import Reader
from bandog.store.retention import HISTORY, prune
from bandog.store.rows import AddGpuEvent, Row, Saved, SaveGpu
from bandog.store.schema import APPLICATION_ID, MIGRATIONS
from bandog.testing import FakeClock

SOON = timedelta(seconds=10)
LATER = NOW.plus(HISTORY + timedelta(days=1))


def card(uuid: str = "GPU-5a", **fields: Any) -> KnownGpu:
    out = Exclusion(reason="second Xid 94", by="xid", since=NOW, xid=94, kind="nvidia.xid", incident=3)
    base: dict[str, Any] = {"slot": "0000:e5:00.0", "serial": "16530", "first_seen": NOW, "last_seen": NOW}
    return KnownGpu(uuid=uuid, **{"exclusions": (out,), **base, **fields})


def xid(code: int, *, uuid: str = "GPU-5a", at: Instant = NOW, count: int = 1) -> AddGpuEvent:
    return AddGpuEvent(event=GpuEvent(uuid=uuid, at=at, what="xid", data={"xid": code, "count": count}))


def filled(path: Path, *rows: Row) -> Path:
    async def write() -> None:
        store = Store(path, clock=FakeClock())
        await store.open(SOON)
        await store.commit(*rows)
        await store.close(SOON)

    asyncio.run(write())
    return path


def back(path: Path) -> Saved:
    database, opened = open_database(path, NOW)
    database.close()
    assert opened.how is How.OPENED
    return database.saved


def test_a_card_comes_back_as_it_was_last_written(tmp_path: Path) -> None:
    newer = card(lemon=True, expected=False)
    path = filled(tmp_path / "bandog.db", SaveGpu(card=card()), SaveGpu(card=newer), SaveGpu(card=card("GPU-17")))
    assert set(back(path).gpus) == {newer, card("GPU-17")}
    with Reader(path) as reader:
        assert reader.gpus() == (card("GPU-17"), newer)


def test_a_line_that_counts_more_replaces_itself_and_keeps_its_place(tmp_path: Path) -> None:
    path = filled(
        tmp_path / "bandog.db", SaveGpu(card=card()), xid(63), xid(94), xid(63, count=2), xid(63, uuid="GPU-17")
    )
    assert [(one.data["xid"], one.data["count"]) for one in back(path).gpu_events] == [(63, 2), (94, 1)]
    with Reader(path) as reader:
        assert len(reader.gpu_events("GPU-5a")) == 2
        assert len(reader.gpu_events("GPU-17")) == 1


def test_a_start_reads_the_newest_lines_of_each_card_oldest_first(tmp_path: Path) -> None:
    rows = [xid(63, at=NOW.plus(timedelta(hours=number))) for number in range(GPU_EVENTS_KEPT + 30)]
    path = filled(tmp_path / "bandog.db", SaveGpu(card=card()), *rows)
    events = back(path).gpu_events
    assert len(events) == GPU_EVENTS_KEPT
    assert [one.at for one in events] == [one.event.at for one in rows[30:]]


def test_a_database_of_the_version_before_is_migrated_and_can_be_read_before_that(tmp_path: Path) -> None:
    path = tmp_path / "bandog.db"
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in MIGRATIONS[0]:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with Reader(path) as reader:
        assert reader.gpus() == () and reader.gpu_events("GPU-5a") == ()
    filled(path, SaveGpu(card=card()), event())
    assert back(path).gpus == (card(),)


def test_history_goes_after_a_year_and_a_card_only_when_nobody_expects_or_excludes_it(tmp_path: Path) -> None:
    gone = card("GPU-gone", expected=False, exclusions=())
    kept = (card("GPU-there", exclusions=()), card("GPU-out", expected=False))
    path = filled(
        tmp_path / "bandog.db",
        *(SaveGpu(card=one) for one in (gone, *kept)),
        xid(63, uuid="GPU-out"),
        xid(94, uuid="GPU-out", at=LATER),
    )
    database, _ = open_database(path, LATER)
    prune(database.connection, NOW.plus(HISTORY - timedelta(days=1)))
    assert database.connection.execute("SELECT count(*) FROM gpu_events").fetchone() == (2,)
    prune(database.connection, LATER)
    database.close()
    saved = back(path)
    assert set(saved.gpus) == set(kept)
    assert [one.data["xid"] for one in saved.gpu_events] == [94]
