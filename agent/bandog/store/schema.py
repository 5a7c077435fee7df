"""The tables, and how an older database becomes one of today.

Values are kept as JSON (`domain.model.to_json`), beside the few columns that are searched. A new
version appends one tuple to `MIGRATIONS`; what has shipped is never edited.
"""

from __future__ import annotations

import sqlite3

from .errors import StoreBroken

APPLICATION_ID = 0x62646F67
""""bdog" in ASCII: tells our file from another program's (SQLite `PRAGMA application_id`)."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE incidents (
            id INTEGER PRIMARY KEY, policy TEXT NOT NULL, subject TEXT NOT NULL, state TEXT NOT NULL,
            last TEXT NOT NULL, ended INTEGER NOT NULL, body TEXT NOT NULL)""",
        "CREATE INDEX incidents_by_end ON incidents (ended, last)",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY, incident INTEGER NOT NULL, at TEXT NOT NULL, body TEXT NOT NULL)""",
        "CREATE INDEX events_by_incident ON events (incident)",
        "CREATE INDEX events_by_time ON events (at)",
        """CREATE TABLE requests (
            id TEXT PRIMARY KEY, incident INTEGER NOT NULL, ended INTEGER NOT NULL, body TEXT NOT NULL)""",
        "CREATE INDEX requests_by_incident ON requests (incident)",
        """CREATE TABLE charges (
            id INTEGER PRIMARY KEY, request TEXT NOT NULL, shadow INTEGER NOT NULL, at TEXT NOT NULL,
            body TEXT NOT NULL, UNIQUE (request, shadow))""",
        "CREATE TABLE cursors (source TEXT PRIMARY KEY, body TEXT NOT NULL)",
        "CREATE TABLE memory (key TEXT PRIMARY KEY, body TEXT NOT NULL)",
        "CREATE TABLE holds (target TEXT PRIMARY KEY, body TEXT NOT NULL)",
        "CREATE TABLE messages (id TEXT PRIMARY KEY, body TEXT NOT NULL)",
    ),
    (
        "CREATE TABLE gpus (uuid TEXT PRIMARY KEY, body TEXT NOT NULL)",
        """CREATE TABLE gpu_events (
            id INTEGER PRIMARY KEY, line TEXT NOT NULL UNIQUE, uuid TEXT NOT NULL, at TEXT NOT NULL,
            body TEXT NOT NULL)""",
        "CREATE INDEX gpu_events_by_card ON gpu_events (uuid)",
        "CREATE INDEX gpu_events_by_time ON gpu_events (at)",
    ),
)
"""The statements that lead from version n to n + 1, for n = 0, 1, …"""

VERSION = len(MIGRATIONS)
GPUS_SINCE = 2
"""The version that brought the tables of the GPUs."""


def is_empty(connection: sqlite3.Connection) -> bool:
    """True for a database without a single table: new, or emptied by a power cut while it was made."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to `VERSION`, each step in one transaction.

    Raises StoreBroken if it is not ours or newer than we are.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if not is_empty(connection) and application != APPLICATION_ID:
        raise StoreBroken("it belongs to another program")
    if version > VERSION:
        raise StoreBroken(f"a newer bandog made it (schema {version}, this one knows {VERSION})")
    for number in range(version, VERSION):
        connection.execute("BEGIN IMMEDIATE")
        for statement in MIGRATIONS[number]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
