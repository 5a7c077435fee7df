"""Rows on their way from the loop to the writer thread, and what each side must know of the other.

The only state that the two share: each method takes the lock for a few steps in memory, so that the
loop never waits for what the thread does with the disk.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass

from .encode import Write, compact
from .errors import StoreError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Job:
    """Statements that belong together, and who waits for them."""

    writes: list[Write]
    futures: list[asyncio.Future[None]]


class Queue:
    """At most `limit` statements wait in it. Nothing is taken before `begin`, nor after `give_up`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turn = threading.Condition()
        self._jobs: list[Job] = []
        self._begun = False
        self._open = False
        self._closing = False
        self._why = ""

    # --- the loop's side -------------------------------------------------------------------

    def begin(self) -> None:
        """Take jobs from now on: a writer is about to open the database."""
        with self._turn:
            self._begun = True

    def put(self, job: Job) -> bool:
        """Queue the job; False if no database takes it. Raises StoreError if it can never be written."""
        with self._turn:
            if self._closing:
                raise StoreError("the store is closed")
            if not self._begun:
                return False
            if self._count() + len(job.writes) > self._limit:
                self._compact()
            if self._count() + len(job.writes) > self._limit:
                raise StoreError(f"{self._limit} statements wait for the disk already")
            self._jobs.append(job)
            self._turn.notify()
            return True

    def give_up(self, why: str) -> bool:
        """Go on without a database; `why` counts if the disk has said nothing. False: it is open, too late."""
        with self._turn:
            if self._open:
                return False
            self._begun = False
            self._jobs = []
            self._why = self._why or why
            return True

    def close(self) -> None:
        """Take nothing more; the writer ends once it has written what waits."""
        with self._turn:
            self._closing = True
            self._turn.notify()

    @property
    def available(self) -> bool:
        """True while a database is open (it may still be stuck)."""
        with self._turn:
            return self._open and not self._closing

    @property
    def why(self) -> str:
        """What the disk last said, "" if it said nothing or has taken rows since."""
        with self._turn:
            return self._why

    # --- the writer's side -----------------------------------------------------------------

    def opened(self) -> bool:
        """Say that the database is open; False if the loop has given up waiting for it."""
        with self._turn:
            self._open = self._begun
            return self._open

    def says(self, why: str) -> None:
        """Note what the disk says, "" after a success."""
        with self._turn:
            self._why = why

    def take(self, idle: float | None) -> tuple[list[Job], bool]:
        """Wait for jobs, `idle` seconds at most, and take them all; also whether the store is closing."""
        with self._turn:
            self._turn.wait_for(lambda: self._jobs or self._closing, idle)
            jobs, self._jobs = self._jobs, []
            return jobs, self._closing

    def put_back(self, jobs: list[Job], why: str) -> bool:
        """The disk refused: keep the jobs in their order. False, and not kept, when the store is closing."""
        with self._turn:
            self._why = why
            if not self._closing:
                self._jobs[:0] = jobs
            return not self._closing

    @property
    def empty(self) -> bool:
        """True while no job waits."""
        with self._turn:
            return not self._jobs

    def pause(self, seconds: float) -> bool:
        """Wait, or until closing; True when closing."""
        with self._turn:
            self._turn.wait_for(lambda: self._closing, seconds)
            return self._closing

    # --- under the lock --------------------------------------------------------------------

    def _count(self) -> int:
        return sum(len(job.writes) for job in self._jobs)

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
        self._jobs = [Job(writes, [future for job in self._jobs for future in job.futures])]
