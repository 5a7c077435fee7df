"""Reading the database without a daemon, for the command line. Never writes, never creates a file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

from ..domain.codec import to_json
from ..domain.gpus import GpuEvent, KnownGpu
from ..domain.model import Incident, IncidentState
from .encode import decode
from .errors import StoreBroken
from .rows import AddCharge, AddEvent, SaveCursor, SavedRequest, SaveHold, SaveMessage
from .schema import GPUS_SINCE

T = TypeVar("T")


class StoreUnreadable(Exception):
    """The database cannot be read; the text says why and what would help."""


class Reader:
    """A read-only view of the database at `path`, as of the last commit.

    Making one, and every method, raises StoreUnreadable when the database cannot be read.
    """

    def __init__(self, path: Path) -> None:
        with _telling(path):
            self._connection = _open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def incidents(
        self,
        *,
        only_open: bool = False,
        policy: str | None = None,
        subject: str | None = None,
        states: Iterable[IncidentState] = (),
        since: datetime | None = None,
        limit: int = 100,
    ) -> tuple[Incident, ...]:
        """Return incidents that pass every filter given, the newest finding first, `limit` at most.

        `since` is aware and bounds the newest finding; `subject` is a glob.
        """
        where, values = ["NOT ended" if only_open else "1"], list[Any]()
        if policy is not None:
            where.append("policy = ?")
            values.append(policy)
        if subject is not None:
            where.append("subject GLOB ?")
            values.append(subject)
        wanted = [state.value for state in states]
        if wanted:
            where.append(f"state IN ({', '.join('?' * len(wanted))})")
            values.extend(wanted)
        if since is not None:
            where.append("last >= ?")
            values.append(to_json(since))
        query = f"SELECT body FROM incidents WHERE {' AND '.join(where)} ORDER BY last DESC, id DESC LIMIT ?"
        return self._rows(Incident, query, *values, limit)

    def incident(self, number: int) -> Incident | None:
        """Return one incident, None if there is none of that number."""
        found = self._rows(Incident, "SELECT body FROM incidents WHERE id = ?", number)
        return found[0] if found else None

    def events(self, incident: int) -> tuple[AddEvent, ...]:
        """Return an incident's timeline (0: the agent's own), oldest first."""
        return self._rows(AddEvent, "SELECT body FROM events WHERE incident = ? ORDER BY id", incident)

    def newest_events(self, limit: int = 100) -> tuple[AddEvent, ...]:
        """Return the newest events of all incidents, the newest first."""
        return self._rows(AddEvent, "SELECT body FROM events ORDER BY id DESC LIMIT ?", limit)

    def requests(self, incident: int) -> tuple[SavedRequest, ...]:
        """Return an incident's requests with how far each got, in the order of their ids."""
        rows = self._rows(SavedRequest, "SELECT body FROM requests WHERE incident = ?", incident)
        return tuple(sorted(rows, key=lambda one: int(one.request.id.rpartition(".")[2])))

    def charges(self) -> tuple[AddCharge, ...]:
        """Return what was counted against budgets in the last 30 days, oldest first."""
        return self._rows(AddCharge, "SELECT body FROM charges ORDER BY id")

    def holds(self) -> tuple[SaveHold, ...]:
        """Return every pause, those that have expired too."""
        return self._rows(SaveHold, "SELECT body FROM holds ORDER BY target")

    def cursors(self) -> tuple[SaveCursor, ...]:
        """Return how far each source was read."""
        return self._rows(SaveCursor, "SELECT body FROM cursors ORDER BY source")

    def messages(self) -> tuple[SaveMessage, ...]:
        """Return the messages not yet delivered, oldest first."""
        return self._rows(SaveMessage, "SELECT body FROM messages ORDER BY rowid")

    def gpus(self) -> tuple[KnownGpu, ...]:
        """Return every card that the inventory knows."""
        return self._of_gpus(KnownGpu, "SELECT body FROM gpus ORDER BY uuid")

    def gpu_events(self, uuid: str, limit: int = 1000) -> tuple[GpuEvent, ...]:
        """Return the newest `limit` lines of a card's history, oldest first."""
        query = "SELECT body FROM gpu_events WHERE uuid = ? ORDER BY id DESC LIMIT ?"
        return self._of_gpus(GpuEvent, query, uuid, limit)[::-1]

    def _of_gpus(self, kind: type[T], query: str, *values: Any) -> tuple[T, ...]:
        with _telling():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return self._rows(kind, query, *values) if version >= GPUS_SINCE else ()  # an older agent wrote it

    def memory(self) -> dict[str, Any]:
        """Return the small values that the agent keeps (breaker, buckets, counters)."""
        with _telling():
            rows = self._connection.execute("SELECT key, body FROM memory ORDER BY key").fetchall()
            return {key: json.loads(body) for key, body in rows}

    def _rows(self, kind: type[T], query: str, *values: Any) -> tuple[T, ...]:
        with _telling():
            return tuple(decode(kind, body) for (body,) in self._connection.execute(query, values))


def _open(path: Path) -> sqlite3.Connection:
    _must_be_readable(path)
    try:
        return _probe(path, "mode=ro")
    except sqlite3.OperationalError:
        # A write-ahead log needs its index file, which cannot be made on a read-only file system.
        # Without a log everything is in the main file, and `immutable` reads that alone.
        log = path.with_name(path.name + "-wal")
        if os.access(path.parent, os.W_OK) or (log.exists() and log.stat().st_size > 0):
            raise
        return _probe(path, "immutable=1")


def _must_be_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except FileNotFoundError:
        raise StoreUnreadable(f"{path}: there is no database yet; bandog makes it at its first start") from None
    except PermissionError:
        raise StoreUnreadable(f"{path}: only root may read it; try sudo") from None


def _probe(path: Path, option: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?{option}", uri=True, timeout=2.0)
    try:
        connection.execute("SELECT count(*) FROM incidents").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _telling(path: Path | None = None) -> Iterator[None]:
    where = f"{path}: " if path is not None else ""
    try:
        yield
    except (sqlite3.Error, StoreBroken, OSError, ValueError) as error:
        raise StoreUnreadable(f"{where}the database cannot be read: {error}") from error
