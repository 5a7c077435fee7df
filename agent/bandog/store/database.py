"""The database file itself: opening, reading back and writing. Blocking; only the writer thread uses it."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..domain.model import Instant
from .encode import Write
from .errors import ReadOnlyFileSystem, StoreBroken, StoreUnavailable, speaks_of_damage
from .load import load
from .rows import Saved
from .schema import is_empty, migrate

Connect = Callable[[Path], sqlite3.Connection]
"""Opens the file; tests put a connection with faults in its place."""

KEEP_ASIDE = 5
"""Broken databases kept for a look; the oldest goes."""
CHECK_LIMIT = 32 * 1024 * 1024
"""A file above this is not checked page by page at start, which would take longer than a start may."""


class How(enum.Enum):
    """How opening went."""

    OPENED = "opened"
    FRESH = "fresh"  # there was none, an empty one was made
    SET_ASIDE = "set-aside"  # there was one, not readable; it was renamed and an empty one made
    UNAVAILABLE = "unavailable"  # cannot be reached; the agent runs without a store


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What `Store.open` found.

    `why` is one sentence where `how` is no success. `aside` is the new name of a broken file.
    `marked` says that this host has had a database before (the marker in /etc/bandog), None when
    that cannot be told.
    """

    how: How
    why: str = ""
    aside: Path | None = None
    marked: bool | None = None


def connect(path: Path) -> sqlite3.Connection:
    """Open the file with SQLite; transactions are ours to begin and end."""
    return sqlite3.connect(path, timeout=2.0, isolation_level=None)


class Database:
    """An open database with everything that it held at the start."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        lock: int,
        saved: Saved,
        flags: Callable[[int], int] = lambda file: os.fstatvfs(file).f_flag,
    ) -> None:
        self.connection = connection
        self.saved = saved
        self._lock = lock
        self._flags = flags

    def write(self, writes: Iterable[Write]) -> None:
        """Commit all writes in one transaction, on the disk when it returns.

        Raises sqlite3.Error, or OverflowError for a number that SQLite cannot hold.
        """
        self._must_be_writable()
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for write in writes:
                self.connection.execute(write.sql, write.values)
            self.connection.execute("COMMIT")
            self._must_be_writable()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise

    def _must_be_writable(self) -> None:
        """After an emergency remount (sysrq u) ext4 was seen to take commits of open files and keep none."""
        if self._flags(self._lock) & os.ST_RDONLY:
            raise ReadOnlyFileSystem("the file system is mounted read-only")

    def move_journal(self) -> None:
        """Move the write-ahead log into the database as far as no reader holds it back."""
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database and cut it to nothing."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the file and let another bandog have it."""
        try:
            self.connection.close()
        finally:
            os.close(self._lock)


def open_database(path: Path, now: Instant, factory: Connect = connect) -> tuple[Database, Opened]:
    """Open, check, migrate and read the database at `path`; a broken one is set aside.

    Raises StoreUnavailable when the file cannot be reached. Blocks for as long as the disk does.
    """
    lock = _lock(path)
    try:
        try:
            return _try(path, lock, factory)
        except StoreBroken as error:
            aside = _set_aside(path, now)
            database, _ = _try(path, lock, factory)
            return database, Opened(how=How.SET_ASIDE, why=str(error), aside=aside)
    except StoreBroken as error:
        os.close(lock)
        raise StoreUnavailable(f"{path}: {error}") from error
    except OSError as error:
        os.close(lock)
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    except BaseException:
        os.close(lock)
        raise


def _lock(path: Path) -> int:
    """Take the lock file that keeps a second bandog out; flock ends with the process, however it ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreUnavailable(f"{path}: another bandog has it open") from error
    return lock


def _try(path: Path, lock: int, factory: Connect) -> tuple[Database, Opened]:
    # SQLite would give the umask's mode; the journal files take the mode of this one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection: sqlite3.Connection | None = None
    try:
        connection = factory(path)
        fresh = _prepare(connection, path)
        saved = load(connection)
    except sqlite3.Error as error:
        _close(connection)
        if speaks_of_damage(error):
            raise StoreBroken(str(error)) from error
        raise StoreUnavailable(f"{path}: {error}") from error
    except BaseException:
        _close(connection)
        raise
    return Database(connection, lock, saved), Opened(how=How.FRESH if fresh else How.OPENED)


def _prepare(connection: sqlite3.Connection, path: Path) -> bool:
    """Set the pragmas, check and migrate; True if the database is new."""
    connection.execute("PRAGMA cache_size = -1024")
    connection.execute("PRAGMA temp_store = MEMORY")
    fresh = is_empty(connection)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(f"{path}: the file system does not do write-ahead logging ({mode})")
    # FULL: a commit is on the disk when it returns, not at the next checkpoint (sqlite.org/pragma.html).
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
    # The writer moves the journal between commits; this is for a flood that leaves it no pause (16 MB).
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    if not fresh and path.stat().st_size <= CHECK_LIMIT:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreBroken(str(verdict))
    migrate(connection)
    return fresh


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def _set_aside(path: Path, now: Instant) -> Path:
    """Rename the database and its journal files to `<name>.broken-<utc>`; keep the newest few."""
    stamp = now.utc.strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.broken-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.broken-{stamp}-{number}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    older = [one for one in path.parent.glob(f"{path.name}.broken-*") if not one.name.endswith(("-wal", "-shm"))]
    for one in sorted(older, key=lambda one: one.stat().st_mtime_ns)[:-KEEP_ASIDE]:
        for suffix in ("", "-wal", "-shm"):
            one.with_name(one.name + suffix).unlink(missing_ok=True)
    return aside
