"""What is thrown away, and when. By proved age only: a clock that jumps ahead deletes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import timedelta

from ..domain.gpus import GpuEvent, KnownGpu
from ..domain.model import Incident, Instant
from .encode import decode
from .errors import StoreBroken
from .rows import AddCharge, AddEvent

HISTORY = timedelta(days=365)
CHARGES = timedelta(days=30)
"""Longer than the longest window of any budget (3 reboots in 7 days)."""
MAX_EVENTS = 200_000
MAX_INCIDENTS = 20_000
MAX_GPU_EVENTS = 50_000
_AT_ONCE = 2_000


def prune(connection: sqlite3.Connection, now: Instant) -> int:
    """Delete ended incidents, events and histories of GPUs past a year or past the caps, charges past 30 days,
    and cards that are gone for a year.

    One transaction; returns the number of rows. Raises sqlite3.Error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        gone = _old_charges(connection, now) + _old_incidents(connection, now) + _old_events(connection, now)
        gone += _old_gpus(connection, now) + _old_gpu_events(connection, now)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return gone


def _old_charges(connection: sqlite3.Connection, now: Instant) -> int:
    rows = connection.execute(
        "SELECT id, body FROM charges WHERE at < ? ORDER BY at LIMIT ?", (_before(now, CHARGES), _AT_ONCE)
    ).fetchall()
    old = [number for number, body in rows if _age(now, body, AddCharge) > CHARGES]
    return _delete(connection, "charges", "id", old)


def _old_incidents(connection: sqlite3.Connection, now: Instant) -> int:
    rows = connection.execute(
        "SELECT id, body FROM incidents WHERE ended AND last < ? ORDER BY last LIMIT ?",
        (_before(now, HISTORY), _AT_ONCE),
    ).fetchall()
    old = [number for number, body in rows if _age(now, body, Incident) > HISTORY]
    old += [
        number
        for (number,) in connection.execute(
            "SELECT id FROM incidents WHERE ended ORDER BY last DESC LIMIT ? OFFSET ?", (_AT_ONCE, MAX_INCIDENTS)
        )
    ]
    _delete(connection, "requests", "incident", old)
    return _delete(connection, "incidents", "id", old) + _delete(connection, "events", "incident", old)


def _old_events(connection: sqlite3.Connection, now: Instant) -> int:
    rows = connection.execute(
        "SELECT id, body FROM events WHERE at < ? ORDER BY at LIMIT ?", (_before(now, HISTORY), _AT_ONCE)
    ).fetchall()
    old = [number for number, body in rows if _age(now, body, AddEvent) > HISTORY]
    old += [
        number
        for (number,) in connection.execute(
            "SELECT id FROM events ORDER BY id DESC LIMIT ? OFFSET ?", (_AT_ONCE, MAX_EVENTS)
        )
    ]
    return _delete(connection, "events", "id", old)


def _old_gpus(connection: sqlite3.Connection, now: Instant) -> int:
    """A card that nobody expects any more; one that is kept out stays known, as it may come back some day."""
    old = []
    for rowid, body in connection.execute("SELECT rowid, body FROM gpus").fetchall():
        try:
            card = decode(KnownGpu, body)
        except StoreBroken:
            continue
        if not card.expected and card.exclusion is None and now.since(card.last_seen) > HISTORY:
            old.append(rowid)
    return _delete(connection, "gpus", "rowid", old)


def _old_gpu_events(connection: sqlite3.Connection, now: Instant) -> int:
    rows = connection.execute(
        "SELECT id, body FROM gpu_events WHERE at < ? ORDER BY at LIMIT ?", (_before(now, HISTORY), _AT_ONCE)
    ).fetchall()
    old = [number for number, body in rows if _age(now, body, GpuEvent) > HISTORY]
    old += [
        number
        for (number,) in connection.execute(
            "SELECT id FROM gpu_events ORDER BY id DESC LIMIT ? OFFSET ?", (_AT_ONCE, MAX_GPU_EVENTS)
        )
    ]
    return _delete(connection, "gpu_events", "id", old)


def _before(now: Instant, age: timedelta) -> str:
    return (now.utc - age).isoformat()


def _age(
    now: Instant, body: str, kind: type[AddCharge] | type[AddEvent] | type[GpuEvent] | type[Incident]
) -> timedelta:
    """Return the proved age of a row; none for one that cannot be read, which is kept for a person."""
    try:
        row = decode(kind, body)
    except StoreBroken:
        return timedelta()
    return now.since(row.last if isinstance(row, Incident) else row.at)


def _delete(connection: sqlite3.Connection, table: str, column: str, values: Iterable[int]) -> int:
    count = 0
    for value in values:
        count += connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (value,)).rowcount
    return count
