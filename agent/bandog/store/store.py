"""The store as the loop sees it: one writer thread owns SQLite, a commit is a future.

A dying disk must not gag us (DESIGN section 6). Nothing here waits for the disk on the loop: rows
are handed over, the thread commits what is queued in one transaction and the future is resolved on
the loop once it is on the disk. A disk that refuses (full, read-only, an I/O error) is tried again
for as long as it takes, in order, with nothing lost; `on_stuck` says so after five seconds.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..domain.model import Instant
from ..host.site import Clock
from .database import Connect, Database, How, Opened, connect, open_database
from .encode import Write, compact, encode
from .errors import StoreError, StoreUnavailable, speaks_of_the_disk
from .lost import is_marked, leave_mark
from .retention import prune
from .rows import Row, Saved

log = logging.getLogger(__name__)

STUCK_AFTER = timedelta(seconds=5)
STUCK_AGAIN = timedelta(seconds=60)
LIMIT = 10_000
"""Statements that may wait for the disk; what newer ones replace is left out before one is refused."""
CHECKPOINT_AFTER = 300
"""Statements between two moves of the journal: about 1 MB of it."""
_RETRY_SECONDS = 0.5
_REOPEN_SECONDS = 10.0
_IDLE_SECONDS = 10.0
_PRUNE_EVERY = timedelta(hours=24)


@dataclass(slots=True)
class _Job:
    writes: list[Write]
    futures: list[asyncio.Future[None]]


class Store:
    """Incidents, requests, budgets, cursors, holds and unsent messages on the disk.

    `on_stuck(how long, why)` is called on the loop when nothing has become durable for
    `stuck_after`, and every minute while that lasts; `on_recovered(how long)` when it goes on. After an
    `open` that gave up, `on_back()` says that the file can be opened now: the agent must start
    again to use it, as it has gone on without what the file holds.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        marker: Path | None = None,
        on_stuck: Callable[[timedelta, str], None] | None = None,
        on_recovered: Callable[[timedelta], None] | None = None,
        on_back: Callable[[], None] | None = None,
        connect: Connect = connect,
        stuck_after: timedelta = STUCK_AFTER,
        limit: int = LIMIT,
    ) -> None:
        self.path = path
        self.written = 0
        self._clock = clock
        self._marker = marker
        self._on_stuck = on_stuck
        self._on_recovered = on_recovered
        self._on_back = on_back
        self._connect = connect
        self._stuck_after = stuck_after
        self._limit = limit
        self._saved = Saved()
        # On the loop only.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], Instant] = {}
        self._unstored: Instant | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told: timedelta | None = None
        self._ended: asyncio.Future[None] | None = None
        # Shared with the writer thread, under `_turn`.
        self._turn = threading.Condition()
        self._jobs: list[_Job] = []
        self._open = False
        self._gave_up = False
        self._closing = False
        self._why = ""
        # The writer thread's own.
        self._dirty = False
        self._since_checkpoint = 0
        self._pruned: Instant | None = None

    # --- on the loop -----------------------------------------------------------------------

    async def open(self, deadline: timedelta) -> Opened:
        """Open the database in the writer thread and read it back; waits `deadline` at most.

        Past it, or if the file cannot be reached, the answer is UNAVAILABLE: commits then never
        become durable, so nothing disruptive happens, and everything else goes on.
        """
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        answer: asyncio.Future[Opened] = self._loop.create_future()
        threading.Thread(target=self._thread, args=(answer,), name="store-writer", daemon=True).start()
        done, _ = await asyncio.wait({answer}, timeout=deadline.total_seconds())
        with self._turn:
            if done and self._open:
                return answer.result()
            if self._open:  # It came good just as the time ran out.
                late = True
            else:
                late = False
                self._gave_up = True
                self._jobs = []
                if not self._why:
                    self._why = f"{self.path}: opening it takes longer than {deadline.total_seconds():g} s"
        if late:
            return await answer
        log.error("store not opened why=%s", self._why)
        return Opened(how=How.UNAVAILABLE, why=self._why, marked=answer.result().marked if done else None)

    async def load(self) -> Saved:
        """Return what `open` read back; empty without a database."""
        return self._saved

    @property
    def available(self) -> bool:
        """True while a database is open behind us (it may still be stuck)."""
        with self._turn:
            return self._open and not self._closing

    def commit(self, *rows: Row) -> asyncio.Future[None]:
        """Hand over rows that belong together; the future is resolved once they are on the disk.

        They are written in one transaction, after everything handed over before. The future fails
        with StoreError only if the rows will never be written: the store is closed, a row cannot be
        expressed, or too much waits already. Call it on the loop; it never waits.
        """
        loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(_heard)
        try:
            queued = self._hand_over(_Job([encode(row) for row in rows], [future]))
        except StoreError as error:
            log.error("rows refused why=%s", error)
            future.set_exception(error)
            return future
        now = self._clock.now()
        if queued:
            self._waiting[future] = now
        elif self._unstored is None:
            self._unstored = now
        self._watch()
        return future

    def _hand_over(self, job: _Job) -> bool:
        """Queue the job; False without a database. Raises StoreError if it can never be written."""
        with self._turn:
            if self._closing:
                raise StoreError("the store is closed")
            if self._gave_up or self._loop is None:
                return False
            if sum(len(one.writes) for one in self._jobs) + len(job.writes) > self._limit:
                self._compact()
            if sum(len(one.writes) for one in self._jobs) + len(job.writes) > self._limit:
                raise StoreError(f"{self._limit} statements wait for the disk already")
            self._jobs.append(job)
            self._turn.notify()
            return True

    def _compact(self) -> None:
        """Make one job of all that wait, without what is replaced; the oldest events go before the rest."""
        writes = compact(write for job in self._jobs for write in job.writes)
        excess = len(writes) - self._limit // 2
        if excess > 0:
            kept = []
            for write in writes:
                if write.key is None and excess > 0:
                    excess -= 1
                else:
                    kept.append(write)
            log.error("timeline rows dropped, the disk does not take them count=%d", len(writes) - len(kept))
            writes = kept
        self._jobs = [_Job(writes, [future for job in self._jobs for future in job.futures])]

    def stuck_for(self) -> timedelta | None:
        """Return how long the oldest commit has waited; None when nothing waits."""
        since = next(iter(self._waiting.values()), None) or self._unstored
        return None if since is None else self._clock.now().since(since)

    def why_stuck(self) -> str:
        """Return what the disk last said, "" if it said nothing."""
        with self._turn:
            return self._why

    def _watch(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(self._stuck_after.total_seconds(), self._check)

    def _check(self) -> None:
        self._timer = None
        stuck = self.stuck_for()
        if stuck is None:
            return
        if stuck >= self._stuck_after and (self._told is None or stuck - self._told >= STUCK_AGAIN):
            self._told = stuck
            why = self.why_stuck() or "the disk does not answer"
            log.error("store stuck seconds=%d why=%s", stuck.total_seconds(), why)
            if self._on_stuck is not None:
                self._on_stuck(stuck, why)
        self._watch()

    def _settle(self, futures: Sequence[asyncio.Future[None]], error: StoreError | None) -> None:
        stuck = self.stuck_for()
        for future in futures:
            self._waiting.pop(future, None)
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        if self._told is not None and error is None and stuck is not None:
            self._told = None
            log.warning("store goes on after seconds=%d", stuck.total_seconds())
            if self._on_recovered is not None:
                self._on_recovered(stuck)

    async def close(self, deadline: timedelta) -> bool:
        """Write what waits and close the file; False if that took longer than `deadline` and was given up."""
        with self._turn:
            self._closing = True
            self._turn.notify()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ended is None:
            return True
        done, _ = await asyncio.wait({self._ended}, timeout=deadline.total_seconds())
        return bool(done)

    # --- in the writer thread ----------------------------------------------------------------

    def _thread(self, answer: asyncio.Future[Opened]) -> None:
        try:
            database = self._open_until_there(answer)
            if database is not None:
                try:
                    self._serve(database)
                finally:
                    with suppress(sqlite3.Error):
                        database.close()
        finally:
            self._post(_resolve, self._ended, None)

    def _open_until_there(self, answer: asyncio.Future[Opened]) -> Database | None:
        """Open the database; after a failure go on trying, only to say that it is back."""
        while True:
            marked = is_marked(self._marker)
            try:
                database, opened = open_database(self.path, self._clock.now(), self._connect)
            except StoreUnavailable as error:
                with self._turn:
                    self._why = str(error)
                self._post(_resolve, answer, Opened(how=How.UNAVAILABLE, why=str(error), marked=marked))
                if self._pause(_REOPEN_SECONDS):
                    return None
                continue
            with self._turn:
                if not self._gave_up:
                    self._open = True
                    self._saved = database.saved
                    break
            database.close()
            self._post(self._back)
            return None
        leave_mark(self._marker)
        self._post(_resolve, answer, Opened(how=opened.how, why=opened.why, aside=opened.aside, marked=marked))
        return database

    def _back(self) -> None:
        log.warning("the database can be opened again path=%s", self.path)
        if self._on_back is not None:
            self._on_back()

    def _serve(self, database: Database) -> None:
        while True:
            with self._turn:
                while not self._jobs and not self._closing:
                    if not self._turn.wait(_IDLE_SECONDS if self._dirty else None):
                        break
                jobs, self._jobs = self._jobs, []
                closing = self._closing
            if jobs:
                self._write(database, jobs)
                self._shorten(database)
            elif closing:
                self._tidy(database, prune_too=False)
                return
            else:
                self._tidy(database, prune_too=True)

    def _write(self, database: Database, jobs: list[_Job]) -> None:
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
            self._post(self._settle, job.futures, StoreError(f"SQLite refuses the row: {error}"))

    def _commit(self, database: Database, jobs: list[_Job]) -> Exception | None:
        try:
            database.write(write for job in jobs for write in job.writes)
        except (sqlite3.Error, OverflowError, ValueError) as error:
            return error
        self._dirty = True
        self._since_checkpoint += sum(len(job.writes) for job in jobs)
        self.written += len(jobs)
        with self._turn:
            self._why = ""
        self._post(self._settle, [future for job in jobs for future in job.futures], None)
        return None

    def _put_back(self, jobs: list[_Job], error: Exception) -> None:
        """The disk refused: keep the rows, in order, and try again a little later."""
        with self._turn:
            self._why = str(error)
            closing = self._closing
            if not closing:
                self._jobs[:0] = jobs
        if closing:
            lost = StoreError(f"closed before the disk took it: {error}")
            self._post(self._settle, [future for job in jobs for future in job.futures], lost)
            return
        self._pause(_RETRY_SECONDS)

    def _shorten(self, database: Database) -> None:
        """Move the journal into the database between two commits, so that no commit waits for it."""
        with self._turn:
            waiting = bool(self._jobs)
        if waiting or self._since_checkpoint < CHECKPOINT_AFTER:
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

    def _pause(self, seconds: float) -> bool:
        """Wait, or until closing; True when closing."""
        with self._turn:
            self._turn.wait_for(lambda: self._closing, seconds)
            return self._closing

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        # A loop that is closed already has nobody left to tell.
        with suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *arguments)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _heard(future: asyncio.Future[None]) -> None:
    """Most commits are not awaited; their failure has been logged and is no surprise to asyncio."""
    if not future.cancelled():
        future.exception()
