"""Threads for what may block: plugins' probes and actions, notification, HTTP.

Each piece of work has a deadline. Python cannot stop a thread, so one that overruns is left behind:
its caller goes on, its late result is dropped and counted, and it keeps its place in a pool of
fixed size until it ends. A pool full of such threads refuses more.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

log = logging.getLogger(__name__)

T = TypeVar("T")

STACK = 512 * 1024
"""Bytes of stack a thread, instead of glibc's 8 MiB: what locked memory would count."""
KEEP_IDLE = 4
MOST_STUCK = 2
"""So many of one name may hang; more are not begun, so that one thing that hangs occupies no whole pool."""


class WorkerTimeout(Exception):
    """The work did not end in time and was left behind; `late` is resolved when it ends after all."""

    def __init__(self, name: str, deadline: timedelta, late: asyncio.Future[None]) -> None:
        super().__init__(f"{name} gave no answer within {deadline.total_seconds():g} s")
        self.name = name
        self.late = late


class WorkersBusy(Exception):
    """Every thread is occupied; the text names what occupies them."""


class WorkerCrash(Exception):
    """The work raised something that must not reach the loop (SystemExit, KeyboardInterrupt …)."""


@dataclass(slots=True, eq=False)
class _Work:
    fn: Callable[[], Any]
    name: str
    result: asyncio.Future[Any]
    late: asyncio.Future[None]
    overdue: bool = False


class _Thread:
    """One thread and the mouth through which work reaches it."""

    def __init__(self, number: int, done: Callable[[_Thread, _Work, Any, Exception | None], None]) -> None:
        self.inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._done = done
        thread = threading.Thread(target=self._serve, name=f"worker-{number}", daemon=True)
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)

    def _serve(self) -> None:
        while (work := self.inbox.get()) is not None:
            value: Any = None
            failure: Exception | None = None
            try:
                value = work.fn()
            except StopIteration as error:
                # asyncio refuses it as the result of a future.
                failure = WorkerCrash(f"{work.name} raised {type(error).__name__}")
            except Exception as error:  # It is handed to the caller, who knows what it means.
                failure = error
            except BaseException as error:
                failure = WorkerCrash(f"{work.name} raised {type(error).__name__}")
            self._done(self, work, value, failure)
            # Nothing of the work may live on in an idle thread.
            del work, value, failure


class Workers:
    """A bounded pool of daemon threads; all of its state belongs to the loop.

    `on_stuck(names)` is called when a piece of work overruns and `names` are all that do,
    `on_free()` when the last of them has ended after all.
    """

    def __init__(
        self,
        max_threads: int = 16,
        *,
        on_stuck: Callable[[tuple[str, ...]], None] | None = None,
        on_free: Callable[[], None] | None = None,
    ) -> None:
        self.late = 0
        self.refused = 0
        self._max = max_threads
        self._on_stuck = on_stuck
        self._on_free = on_free
        self._idle: list[_Thread] = []
        self._busy: dict[_Thread, _Work] = {}
        self._started = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def busy(self) -> int:
        """Threads that work, those left behind too."""
        return len(self._busy)

    @property
    def stuck(self) -> tuple[str, ...]:
        """The names of what has overrun its deadline and still goes on."""
        return tuple(work.name for work in self._busy.values() if work.overdue)

    async def run(self, fn: Callable[[], T], *, deadline: timedelta, name: str) -> T:
        """Run `fn` in a thread and return what it returns or raise what it raises.

        Raises WorkerTimeout when it takes longer than `deadline`, and WorkersBusy at once when no
        thread is free or earlier work of this name hangs. Cancelling the caller leaves the work
        behind in the same way.
        """
        loop = self._loop = asyncio.get_running_loop()
        if self.stuck.count(name) >= MOST_STUCK:
            self.refused += 1
            raise WorkersBusy(f"{name} is not begun again while {MOST_STUCK} of it hang")
        work = _Work(fn, name, loop.create_future(), loop.create_future())
        # A caller cancelled in the very turn in which the result arrives does not look at it.
        work.result.add_done_callback(_heard)
        thread = self._thread()
        self._busy[thread] = work
        thread.inbox.put(work)
        try:
            await asyncio.wait({work.result}, timeout=deadline.total_seconds())
        finally:
            if not work.result.done():
                self._leave(work)
        if work.overdue:
            raise WorkerTimeout(name, deadline, work.late)
        return cast("T", work.result.result())

    def _thread(self) -> _Thread:
        if self._idle:
            return self._idle.pop()
        if len(self._busy) >= self._max:
            self.refused += 1
            names = ", ".join(sorted({work.name for work in self._busy.values()}))
            raise WorkersBusy(f"all {self._max} worker threads are occupied by: {names}")
        self._started += 1
        try:
            return _Thread(self._started, self._report)
        except RuntimeError as error:  # The kernel refuses another thread.
            self.refused += 1
            raise WorkersBusy(str(error)) from error

    def _leave(self, work: _Work) -> None:
        work.overdue = True
        log.warning("work left behind name=%s stuck=%d", work.name, len(self.stuck))
        if self._on_stuck is not None:
            self._on_stuck(self.stuck)

    def _report(self, thread: _Thread, work: _Work, value: Any, failure: Exception | None) -> None:
        """In the worker thread: hand the outcome to the loop, if there is one left."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._finished, thread, work, value, failure)
        except RuntimeError:
            thread.inbox.put(None)

    def _finished(self, thread: _Thread, work: _Work, value: Any, failure: Exception | None) -> None:
        self._busy.pop(thread, None)
        if len(self._idle) < KEEP_IDLE:
            self._idle.append(thread)
        else:
            thread.inbox.put(None)
        if work.overdue:
            self.late += 1
            log.warning("late result dropped name=%s", work.name)
            if self._on_free is not None and not self.stuck:
                self._on_free()
        elif failure is not None:
            work.result.set_exception(failure)
        else:
            work.result.set_result(value)
        work.late.set_result(None)

    def close(self) -> None:
        """Let idle threads end; busy ones end with their work, or with the process."""
        for thread in self._idle:
            thread.inbox.put(None)
        self._idle.clear()


def _heard(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
