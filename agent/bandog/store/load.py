"""Reading everything back that a start needs."""

from __future__ import annotations

import json
import sqlite3

from ..domain.gpus import GpuEvent, KnownGpu
from ..domain.model import Incident
from .encode import decode
from .errors import StoreBroken
from .rows import AddCharge, SaveCursor, Saved, SavedRequest, SaveHold, SaveMessage

ENDED_KEPT = 200
"""Ended incidents that a start reads back, the newest first."""

GPU_EVENTS_KEPT = 120
"""Lines of one card's history that a start reads back, the newest."""


def load(connection: sqlite3.Connection) -> Saved:
    """Return what the agent goes on with: open incidents with all their requests, and every request
    that has not ended. Raises StoreBroken if one row cannot be read: a budget that silently lost a
    charge would allow too much.
    """
    incidents = _column(connection, "SELECT body FROM incidents WHERE NOT ended ORDER BY id")
    ended = _column(
        connection, f"SELECT body FROM incidents WHERE ended ORDER BY last DESC, id DESC LIMIT {ENDED_KEPT}"
    )
    requests = _column(
        connection,
        "SELECT body FROM requests WHERE NOT ended OR incident IN (SELECT id FROM incidents WHERE NOT ended)"
        " ORDER BY rowid",
    )
    both = [decode(Incident, body) for body in (*incidents, *ended)]
    return Saved(
        incidents=tuple(sorted(both, key=lambda one: one.id)),
        requests=tuple(decode(SavedRequest, body) for body in requests),
        charges=tuple(decode(AddCharge, one) for one in _all(connection, "charges")),
        cursors=tuple(decode(SaveCursor, one) for one in _all(connection, "cursors")),
        memory=_memory(connection),
        holds=tuple(decode(SaveHold, one) for one in _all(connection, "holds")),
        messages=tuple(decode(SaveMessage, one) for one in _all(connection, "messages")),
        gpus=tuple(decode(KnownGpu, one) for one in _all(connection, "gpus")),
        gpu_events=tuple(decode(GpuEvent, one) for one in _gpu_events(connection)),
    )


def _column(connection: sqlite3.Connection, query: str) -> list[str]:
    return [body for (body,) in connection.execute(query)]


def _all(connection: sqlite3.Connection, table: str) -> list[str]:
    return _column(connection, f"SELECT body FROM {table} ORDER BY rowid")


def _gpu_events(connection: sqlite3.Connection) -> list[str]:
    return [
        body
        for (uuid,) in connection.execute("SELECT uuid FROM gpus ORDER BY uuid").fetchall()
        for (body,) in reversed(
            connection.execute(
                "SELECT body FROM gpu_events WHERE uuid = ? ORDER BY id DESC LIMIT ?", (uuid, GPU_EVENTS_KEPT)
            ).fetchall()
        )
    ]


def _memory(connection: sqlite3.Connection) -> dict[str, object]:
    try:
        return {key: json.loads(body) for key, body in connection.execute("SELECT key, body FROM memory")}
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreBroken(f"a stored value cannot be read: {error}") from error
