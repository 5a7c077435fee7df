"""The database file: what is broken is set aside and said, what cannot be reached is left alone."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import NOW, charge, event, incident, saved

from bandog.domain.model import IncidentState, StepState
from bandog.host.paths import Paths
from bandog.store import How, Opened, Store
from bandog.store.database import KEEP_ASIDE, Database, connect, open_database
from bandog.store.errors import StoreUnavailable, speaks_of_the_disk
from bandog.store.lost import leave_mark, marker_path, state_lost
from bandog.store.retention import CHARGES, HISTORY, MAX_EVENTS, prune
from bandog.store.rows import Remember, Row, Saved, SaveIncident
from bandog.store.schema import VERSION
from bandog.testing import FakeClock

SOON = timedelta(seconds=10)


def filled(path: Path, *rows: Row) -> None:
    """A database with these rows, closed well."""

    async def write() -> None:
        store = Store(path, clock=FakeClock())
        await store.open(SOON)
        await store.commit(*rows)
        await store.close(SOON)

    asyncio.run(write())


def opening(path: Path) -> tuple[Opened, Saved]:
    """Open it as a start does and close it."""
    database, opened = open_database(path, NOW)
    database.close()
    return opened, database.saved


def altered(path: Path, *statements: str) -> None:
    """Change the file behind the store's back."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_new_database_is_fresh_and_then_opened(tmp_path: Path) -> None:
    assert opening(tmp_path / "bandog.db")[0] == Opened(how=How.FRESH)
    assert opening(tmp_path / "bandog.db")[0] == Opened(how=How.OPENED)


LATE = "UPDATE charges SET body = json_set(body, '$.at.boottime', 1e300)"  # more than a timedelta holds


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b"not a database at all" * 1000), "file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:8192]), "malformed"),
        (lambda path: altered(path, "PRAGMA application_id = 7"), "it belongs to another program"),
        (lambda path: altered(path, f"PRAGMA user_version = {VERSION + 1}"), "a newer bandog made it"),
        (lambda path: altered(path, "DROP TABLE charges"), "no such table"),
        (lambda path: altered(path, "UPDATE charges SET body = '{}'"), "a stored AddCharge cannot be read"),
        (lambda path: altered(path, LATE), "a stored AddCharge cannot be read"),
        (lambda path: altered(path, "UPDATE memory SET body = '{'"), "a stored value cannot be read"),
        (lambda path: altered(path, "UPDATE incidents SET body = x'ff00'"), "a stored Incident cannot be read"),
    ],
)
def test_a_broken_database_is_set_aside_and_said(tmp_path: Path, damage: Any, why: str) -> None:
    path = tmp_path / "bandog.db"
    filled(path, charge(), SaveIncident(incident=incident()), Remember(key="k", value=1))
    damage(path)
    opened, found = opening(path)
    assert (opened.how, found) == (How.SET_ASIDE, Saved())
    assert why in opened.why
    assert opened.aside == tmp_path / "bandog.db.broken-20261130T120000Z"
    assert opened.aside.exists(), "nothing is thrown away"
    assert opening(path)[0].how is How.OPENED


def test_what_is_set_aside_does_not_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "bandog.db"
    for number in range(KEEP_ASIDE + 3):
        path.write_bytes(b"broken" * 1000)
        opened, _ = opening(path)
        assert opened.aside is not None
        os.utime(opened.aside, (number, number))
    assert len(list(tmp_path.glob("*.broken-*"))) == KEEP_ASIDE
    assert opened.aside.exists()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/nowhere/at/all")])
def test_a_file_that_cannot_be_reached_is_left_alone(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "bandog.db"
    make(path)
    with pytest.raises(StoreUnavailable, match=str(path)):
        open_database(path, NOW)
    assert not list(tmp_path.glob("*.broken-*"))


def test_an_empty_file_is_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "bandog.db").touch()
    assert opening(tmp_path / "bandog.db")[0].how is How.FRESH


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300), keep=st.integers(0, 20_000), at=st.integers(0, 20_000))
def test_arbitrary_bytes_in_the_file_never_crash_a_start(tmp_path: Path, content: bytes, keep: int, at: int) -> None:
    path = tmp_path / "bandog.db"
    whole = tmp_path / "whole.db"
    if not whole.exists():
        filled(whole, charge(), SaveIncident(incident=incident()), saved(), event())
    raw = whole.read_bytes()[: keep or None]
    path.write_bytes(raw[:at] + content + raw[at + len(content) :])
    opened, found = opening(path)
    assert opened.how in How
    assert opened.how is How.OPENED or found == Saved(), "what is lost is told"
    path.unlink()


def test_a_torn_journal_keeps_what_was_committed_before(tmp_path: Path) -> None:
    path = tmp_path / "bandog.db"
    filled(path, charge("1.1"))
    database, _ = open_database(path, NOW)
    copy = tmp_path / "copy.db"
    database.connection.execute("PRAGMA wal_autocheckpoint = 0")
    database.connection.execute("UPDATE charges SET request = request")
    log = path.with_name("bandog.db-wal").read_bytes()
    copy.write_bytes(path.read_bytes())
    copy.with_name("copy.db-wal").write_bytes(log[: len(log) - 100])
    database.close()
    opened, found = opening(copy)
    assert (opened.how, found.charges) == (How.OPENED, (charge("1.1"),))


# --- lost state ------------------------------------------------------------------------------------------


def test_state_is_lost_when_a_host_that_had_a_database_has_none(tmp_path: Path) -> None:
    assert state_lost(Opened(how=How.FRESH, marked=False), None) is None, "a first install"
    assert state_lost(Opened(how=How.FRESH, marked=None), 2) is None
    assert state_lost(Opened(how=How.OPENED, marked=False), 5) is None
    assert state_lost(Opened(how=How.UNAVAILABLE, marked=True), 5) is None
    assert "there is no database" in str(state_lost(Opened(how=How.FRESH, marked=True), None))
    assert "has booted 3 times" in str(state_lost(Opened(how=How.FRESH, marked=False), 3))
    aside = Opened(how=How.SET_ASIDE, why="malformed", aside=tmp_path, marked=False)
    assert "malformed" in str(state_lost(aside, None))


def test_the_marker_is_left_at_the_first_start_and_told_at_the_next(tmp_path: Path) -> None:
    paths = Paths(root=tmp_path)
    paths.etc.mkdir(parents=True)

    async def start() -> Opened:
        store = Store(paths.state / "bandog.db", clock=FakeClock(), marker=marker_path(paths))
        opened = await store.open(SOON)
        await store.close(SOON)
        return opened

    assert asyncio.run(start()).marked is False
    assert asyncio.run(start()).marked is True
    (paths.state / "bandog.db").unlink()
    assert state_lost(asyncio.run(start()), None) is not None


def test_a_marker_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    leave_mark(tmp_path / "nowhere" / "marker")
    leave_mark(None)


# --- retention -----------------------------------------------------------------------------------------------


def left_after(path: Path, now: Any) -> dict[str, int]:
    """Prune and count what is left."""
    database, _ = open_database(path, now)
    prune(database.connection, now)
    counts = {
        table: database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("incidents", "events", "requests", "charges")
    }
    database.close()
    return counts


def test_old_history_and_charges_go_and_open_incidents_stay(tmp_path: Path) -> None:
    path = tmp_path / "bandog.db"
    ended = incident(2, state=IncidentState.RESOLVED)
    rows = [saved("1.1", StepState.PROVED), saved("2.1", StepState.PROVED), charge(), event(1), event(2)]
    filled(path, SaveIncident(incident=incident(1)), SaveIncident(incident=ended), *rows)
    assert left_after(path, NOW.plus(CHARGES)) == {"incidents": 2, "events": 2, "requests": 2, "charges": 1}
    month = NOW.plus(CHARGES + timedelta(seconds=1))
    assert left_after(path, month) == {"incidents": 2, "events": 2, "requests": 2, "charges": 0}
    year = NOW.plus(HISTORY + timedelta(seconds=1))
    assert left_after(path, year) == {"incidents": 1, "events": 0, "requests": 1, "charges": 0}


def test_a_clock_that_jumped_ahead_deletes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bandog.db"
    filled(path, SaveIncident(incident=incident(state=IncidentState.RESOLVED)), saved(), charge(), event())
    boot = dataclasses.replace(
        NOW, boot_id="e" * 32, boottime=timedelta(minutes=1), utc=NOW.utc + timedelta(days=9000), synced=False
    )
    assert left_after(path, boot) == {"incidents": 1, "events": 1, "requests": 1, "charges": 1}


def test_the_number_of_rows_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bandog.db"
    filled(path, event())
    body = json.dumps("x")
    altered(
        path,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
        f"{MAX_EVENTS + 500}) INSERT INTO events (incident, at, body) SELECT 1, '2026-11-30', '{body}' FROM n",
    )
    assert left_after(path, NOW)["events"] == MAX_EVENTS


def test_a_file_system_that_became_read_only_takes_nothing_even_if_sqlite_does_not_notice(tmp_path: Path) -> None:
    """After sysrq u ext4 took the commits of files that were open already."""
    database, _ = open_database(tmp_path / "bandog.db", NOW, connect)
    flags = [os.ST_RDONLY]
    watched = Database(database.connection, database._lock, database.saved, lambda file: flags[0])
    with pytest.raises(sqlite3.OperationalError, match="read-only") as caught:
        watched.write([])
    assert speaks_of_the_disk(caught.value)
    flags[0] = 0
    watched.write([])
    database.close()
