"""What can go wrong between us and the disk, as types that callers can tell apart."""

from __future__ import annotations

import sqlite3

_DISK = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}
"""Primary result codes that speak of the disk, not of the statement (sqlite.org/rescode.html)."""
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class StoreError(Exception):
    """A commit will never become durable: the store was closed, is full, or cannot express the row."""


class StoreUnavailable(Exception):
    """The database cannot be reached now: frozen, read-only, full, no permission, held by another bandog.

    The file itself may be whole; nothing was changed.
    """


class StoreBroken(Exception):
    """The file is no database of ours, is damaged, or was made by a newer bandog."""


class ReadOnlyFileSystem(sqlite3.OperationalError):
    """The file system under the database has become read-only, though SQLite may not have noticed."""

    sqlite_errorcode = sqlite3.SQLITE_READONLY


def speaks_of_the_disk(error: Exception) -> bool:
    """True for an SQLite error that another try may not meet: the disk's, not the statement's."""
    return _primary(error) in _DISK


def speaks_of_damage(error: Exception) -> bool:
    """True for an SQLite error that says that the file is no (whole) database of ours."""
    return _primary(error) in _DAMAGE or not speaks_of_the_disk(error)


def _primary(error: Exception) -> int:
    """Return SQLite's primary result code (the low byte of the extended one), 0 where there is none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
