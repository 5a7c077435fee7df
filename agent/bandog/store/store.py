"""The store as the loop sees it: one writer thread owns SQLite, a commit is a future.

A dying disk must not gag us (DESIGN section 6). Nothing here waits for the disk on the loop: rows
are handed over, the thread commits what is queued and the future is resolved on the loop once it is
on the disk. `on_stuck` says so when nothing has got there for five seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from ..domain.model import Instant
from ..host.site import Clock
from .database import Connect, How, Opened, connect
from .encode import encode
from .errors import StoreError
from .queue import Job, Queue
from .rows import Row, Saved
from .writer import Writer

log = logging.getLogger(__name__)

STUCK_AFTER = timedelta(seconds=5)
STUCK_AGAIN = timedelta(seconds=60)
LIMIT = 10_000
"""Statements that may wait for the disk; what newer ones replace is left out before one is refused."""


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
        self._clock = clock
        self._marker = marker
        self._on_stuck = on_stuck
        self._on_recovered = on_recovered
        self._on_back = on_back
        self._connect = connect
        self._stuck_after = stuck_after
        self._queue = Queue(limit)
        self._saved = Saved()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._waiting: dict[asyncio.Future[None], Instant] = {}
        self._unstored: Instant | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told: timedelta | None = None

    async def open(self, deadline: timedelta) -> Opened:
        """Open the database in the writer thread and read it back; waits `deadline` at most.

        Past it, or if the file cannot be reached, the answer is UNAVAILABLE: commits then never
        become durable, so nothing disruptive happens, and everything else goes on.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._ended = ended = loop.create_future()
        answer: asyncio.Future[Opened] = loop.create_future()

        def opened(how: Opened, saved: Saved) -> None:
            if not answer.done():
                self._saved = saved
                answer.set_result(how)

        self._queue.begin()
        Writer(
            self.path,
            clock=self._clock,
            marker=self._marker,
            connect=self._connect,
            queue=self._queue,
            loop=loop,
            on_opened=opened,
            on_settled=self._settle,
            on_back=self._back,
            on_ended=lambda: ended.set_result(None),
        ).start()
        done, _ = await asyncio.wait({answer}, timeout=deadline.total_seconds())
        if not self._queue.give_up(f"{self.path}: opening it takes longer than {deadline.total_seconds():g} s"):
            return await answer  # at once, or it came good just as the time ran out
        why = self._queue.why
        log.error("store not opened why=%s", why)
        return Opened(how=How.UNAVAILABLE, why=why, marked=answer.result().marked if done else None)

    async def load(self) -> Saved:
        """Return what `open` read back; empty without a database."""
        return self._saved

    @property
    def available(self) -> bool:
        """True while a database is open behind us (it may still be stuck)."""
        return self._queue.available

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
            queued = self._queue.put(Job([encode(row) for row in rows], [future]))
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

    def stuck_for(self) -> timedelta | None:
        """Return how long the oldest commit has waited; None when nothing waits."""
        since = next(iter(self._waiting.values()), None) or self._unstored
        return None if since is None else self._clock.now().since(since)

    def why_stuck(self) -> str:
        """Return what the disk last said, "" if it said nothing."""
        return self._queue.why

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

    def _back(self) -> None:
        log.warning("the database can be opened again path=%s", self.path)
        if self._on_back is not None:
            self._on_back()

    async def close(self, deadline: timedelta) -> bool:
        """Write what waits and close the file; False if that took longer than `deadline` and was given up."""
        self._queue.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ended is None:
            return True
        done, _ = await asyncio.wait({self._ended}, timeout=deadline.total_seconds())
        return bool(done)


def _heard(future: asyncio.Future[None]) -> None:
    """Most commits are not awaited; their failure has been logged and is no surprise to asyncio."""
    if not future.cancelled():
        future.exception()
