"""The writer thread: the only one that touches the database, so a frozen disk holds nothing but it.

What is queued goes to the disk in one transaction. A disk that refuses (full, read-only, an I/O
error) is tried again for as long as it takes, in order, with nothing lost.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ..domain.model import Instant
from ..host.site import Clock
from .database import Connect, Database, How, Opened, open_database
from .errors import StoreError, StoreUnavailable, speaks_of_the_disk
from .lost import is_marked, leave_mark
from .queue import Job, Queue
from .retention import prune
from .rows import Saved

log = logging.getLogger(__name__)

CHECKPOINT_AFTER = 300
"""Statements between two moves of the journal: about 1 MB of it."""
_RETRY_SECONDS = 0.5
_REOPEN_SECONDS = 10.0
_IDLE_SECONDS = 10.0
_PRUNE_EVERY = timedelta(hours=24)


class Writer:
    """Opens the database and writes what `queue` holds until that is closed.

    It answers by calls on `loop`: `on_opened(how, what it held)` after each try to open;
    `on_settled(futures, error)` for jobs that are on the disk, or never will be; `on_back()` if the file can be
    opened after the queue was given up; `on_ended()` at the last.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        marker: Path | None,
        connect: Connect,
        queue: Queue,
        loop: asyncio.AbstractEventLoop,
        on_opened: Callable[[Opened, Saved], None],
        on_settled: Callable[[Sequence[asyncio.Future[None]], StoreError | None], None],
        on_back: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._path = path
        self._clock = clock
        self._marker = marker
        self._connect = connect
        self._queue = queue
        self._loop = loop
        self._on_opened = on_opened
        self._on_settled = on_settled
        self._on_back = on_back
        self._on_ended = on_ended
        self._dirty = False
        self._since_checkpoint = 0
        self._pruned: Instant | None = None

    def start(self) -> None:
        """Start the thread; a process that ends does not wait for it."""
        threading.Thread(target=self._run, name="store-writer", daemon=True).start()

    def _run(self) -> None:
        try:
            database = self._open()
            if database is not None:
                try:
                    self._serve(database)
                finally:
                    with suppress(sqlite3.Error):
                        database.close()
        finally:
            self._post(self._on_ended)

    def _open(self) -> Database | None:
        """Open the database; after a failure go on trying, only to say that it is back."""
        while True:
            marked = is_marked(self._marker)
            try:
                database, opened = open_database(self._path, self._clock.now(), self._connect)
            except StoreUnavailable as error:
                self._queue.says(str(error))
                self._queue.give_up(str(error))
                self._post(self._on_opened, Opened(how=How.UNAVAILABLE, why=str(error), marked=marked), Saved())
                if self._queue.pause(_REOPEN_SECONDS):
                    return None
                continue
            if self._queue.opened():
                break
            database.close()
            self._post(self._on_back)
            return None
        leave_mark(self._marker)
        self._post(self._on_opened, replace(opened, marked=marked), database.saved)
        return database

    def _serve(self, database: Database) -> None:
        while True:
            jobs, closing = self._queue.take(_IDLE_SECONDS if self._dirty else None)
            if jobs:
                self._write(database, jobs)
                self._shorten(database)
            elif closing:
                self._tidy(database, prune_too=False)
                return
            else:
                self._tidy(database, prune_too=True)

    def _write(self, database: Database, jobs: list[Job]) -> None:
        """Commit all jobs in one transaction; if one of them is at fault, each in its own."""
        error = self._commit(database, jobs)
        if error is None:
            return
        if speaks_of_the_disk(error):
            self._put_back(jobs, error)
            return
        for position, job in enumerate(jobs):
            error = self._commit(database, [job])
            if error is None:
                continue
            if speaks_of_the_disk(error):
                self._put_back(jobs[position:], error)
                return
            self._settle([job], StoreError(f"SQLite refuses the row: {error}"))

    def _commit(self, database: Database, jobs: list[Job]) -> Exception | None:
        try:
            database.write(write for job in jobs for write in job.writes)
        except (sqlite3.Error, OverflowError, ValueError) as error:
            return error
        self._dirty = True
        self._since_checkpoint += sum(len(job.writes) for job in jobs)
        self._queue.says("")
        self._settle(jobs)
        return None

    def _put_back(self, jobs: list[Job], error: Exception) -> None:
        """The disk refused: keep the rows, in order, and try again a little later."""
        if self._queue.put_back(jobs, str(error)):
            self._queue.pause(_RETRY_SECONDS)
        else:
            self._settle(jobs, StoreError(f"closed before the disk took it: {error}"))

    def _shorten(self, database: Database) -> None:
        """Move the journal into the database between two commits, so that no commit waits for it."""
        if self._since_checkpoint < CHECKPOINT_AFTER or not self._queue.empty:
            return
        self._since_checkpoint = 0
        try:
            database.move_journal()
        except sqlite3.Error as error:
            log.warning("moving the journal failed why=%s", error)

    def _tidy(self, database: Database, *, prune_too: bool) -> None:
        """While nothing is to be written: once a day drop what is old, and shorten the journal file."""
        now = self._clock.now()
        try:
            if prune_too and (self._pruned is None or now.since(self._pruned) >= _PRUNE_EVERY):
                self._pruned = now
                prune(database.connection, now)
            database.checkpoint()
        except sqlite3.Error as error:
            log.warning("tidying the database failed why=%s", error)
        self._dirty = False

    def _settle(self, jobs: list[Job], error: StoreError | None = None) -> None:
        self._post(self._on_settled, [future for job in jobs for future in job.futures], error)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        # A loop that is closed already has nobody left to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)
