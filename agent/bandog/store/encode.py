"""Rows as SQL, both ways. Writing is by key wherever a newer row replaces an older one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..domain.codec import from_json, to_json
from ..domain.gpus import GpuEvent
from ..domain.model import EMPTY
from .errors import StoreBroken, StoreError
from .rows import (
    AddCharge,
    AddEvent,
    AddGpuEvent,
    DropHold,
    DropMessage,
    Remember,
    Row,
    SaveCursor,
    SavedRequest,
    SaveGpu,
    SaveHold,
    SaveIncident,
    SaveMessage,
)

T = TypeVar("T")

MAX_BODY = 256 * 1024
"""Bytes of one row's JSON. An event's data above it is left out; anything else is refused."""


@dataclass(frozen=True, slots=True)
class Write:
    """One statement. A later one with the same `key` makes this one needless; None: it never is."""

    key: tuple[str, str] | None
    sql: str
    values: tuple[Any, ...]


def encode(row: Row) -> Write:
    """Return the statement that stores `row`; raises StoreError if it has no JSON form or is too big."""
    try:
        return _encode(row)
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        raise StoreError(f"{type(row).__name__} cannot be written: {error}") from error


def _encode(row: Row) -> Write:
    match row:
        case SaveIncident(incident=one):
            return Write(
                ("incident", str(one.id)),
                "INSERT OR REPLACE INTO incidents (id, policy, subject, state, last, ended, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    one.id,
                    _text(one.policy),
                    _text(one.subject),
                    one.state.value,
                    _time(one.last.utc),
                    int(one.state.ended),
                    _body(one),
                ),
            )
        case AddEvent():
            return Write(
                None,
                "INSERT INTO events (incident, at, body) VALUES (?, ?, ?)",
                (row.incident, _time(row.at.utc), _event_body(row)),
            )
        case SavedRequest(request=request):
            return Write(
                ("request", request.id),
                "INSERT OR REPLACE INTO requests (id, incident, ended, body) VALUES (?, ?, ?, ?)",
                (_text(request.id), request.incident, int(row.state.ended), _body(row)),
            )
        case AddCharge():
            # A request is counted once, however often its intent is committed.
            return Write(
                ("shadow" if row.shadow else "charge", row.request),
                "INSERT OR IGNORE INTO charges (request, shadow, at, body) VALUES (?, ?, ?, ?)",
                (_text(row.request), int(row.shadow), _time(row.at.utc), _body(row)),
            )
        case SaveCursor():
            return _keyed("cursors", "source", row.source, _body(row))
        case Remember(value=None):
            return _delete("memory", "key", row.key)
        case Remember():
            return _keyed("memory", "key", row.key, _body(row.value))
        case SaveHold():
            return _keyed("holds", "target", row.target, _body(row))
        case DropHold():
            return _delete("holds", "target", row.target)
        case SaveMessage():
            return _keyed("messages", "id", row.id, _body(row))
        case DropMessage():
            return _delete("messages", "id", row.id)
        case SaveGpu(card=card):
            return _keyed("gpus", "uuid", card.uuid, _body(card))
        case AddGpuEvent(event=event):
            return _gpu_event(event)
    raise TypeError("no such row")


def _gpu_event(event: GpuEvent) -> Write:
    seconds = event.at.boottime.total_seconds()
    line = f"{event.uuid} {event.at.boot_id} {seconds:.6f} {event.what} {event.data.get('xid', '')}"
    sql = (
        "INSERT INTO gpu_events (line, uuid, at, body) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (line) DO UPDATE SET body = excluded.body"
    )
    return Write(("gpu_events", line), sql, (_text(line), _text(event.uuid), _time(event.at.utc), _body(event)))


def _keyed(table: str, column: str, key: str, body: str) -> Write:
    # `ON CONFLICT` keeps the rowid, which is the order of first writing (messages are sent in it).
    sql = (
        f"INSERT INTO {table} ({column}, body) VALUES (?, ?) ON CONFLICT ({column}) DO UPDATE SET body = excluded.body"
    )
    return Write((table, key), sql, (_text(key), body))


def _delete(table: str, column: str, key: str) -> Write:
    return Write((table, key), f"DELETE FROM {table} WHERE {column} = ?", (_text(key),))


def _text(value: str) -> str:
    """Names may hold bytes that are no UTF-8 (as surrogates), which SQLite does not take."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _time(utc: Any) -> str:
    return str(to_json(utc))


def _body(value: Any) -> str:
    text = json.dumps(to_json(value), separators=(",", ":"))
    if len(text) > MAX_BODY:
        raise ValueError(f"{len(text)} bytes are more than {MAX_BODY}")
    return text


def _event_body(row: AddEvent) -> str:
    try:
        return _body(row)
    except ValueError:
        return _body(AddEvent(incident=row.incident, at=row.at, what=row.what, why=row.why[:1000], data=EMPTY))


def decode(kind: type[T], body: Any) -> T:
    """Rebuild a row from its JSON text; raises StoreBroken when it does not fit."""
    try:
        return from_json(kind, json.loads(body))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise StoreBroken(f"a stored {kind.__name__} cannot be read: {error}") from error


def compact(writes: Iterable[Write]) -> list[Write]:
    """Leave out every write that a later one with the same key replaces; the order of the rest stays."""
    kept: dict[tuple[str, str] | int, Write] = {}
    for number, write in enumerate(writes):
        key = write.key if write.key is not None else number
        kept.pop(key, None)
        kept[key] = write
    return list(kept.values())
