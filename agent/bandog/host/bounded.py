"""Blocking calls with an end: run one in a thread of its own and stop waiting at the deadline.

A name lookup, a connect to a dead network or a server that sends a byte a minute cannot be
interrupted from outside; what can be done is to leave the thread behind, count it, and start no
more of them once too many are left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


class Overrun(Exception):
    """The call did not end in time, or too many calls before it have not ended either."""


class _Call(Generic[T]):
    """One call in its thread, and what came of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.ended = threading.Event()
        self.value: T | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.value = self.work()
        except Exception as error:  # handed to the caller, who catches narrowly
            self.error = error
        finally:
            self.ended.set()


class Bounded:
    """Runs calls in daemon threads; `left` of them may outlive their deadline at a time."""

    def __init__(self, name: str, *, left: int = 8) -> None:
        self._name = name
        self._left = left
        self._running: list[threading.Event] = []
        self._lock = threading.Lock()

    @property
    def overrun(self) -> int:
        """How many given-up calls have not ended yet."""
        with self._lock:
            self._running = [one for one in self._running if not one.is_set()]
            return len(self._running)

    def call(self, work: Callable[[], T], *, deadline: timedelta, abort: Callable[[], None] | None = None) -> T:
        """Return `work()`; what it raises is raised. Past the deadline `abort` is called and Overrun raised.

        `abort` shall make the call end soon (close its socket); it must not block.
        """
        if self.overrun >= self._left:
            raise Overrun(f"{self._left} earlier calls have not ended")
        call = _Call(work)
        threading.Thread(target=call.run, name=self._name, daemon=True).start()
        if not call.ended.wait(max(0.0, deadline.total_seconds())):
            with self._lock:
                self._running.append(call.ended)
            if abort is not None:
                abort()
            raise Overrun(f"no end within {deadline.total_seconds():g} s")
        if call.error is not None:
            raise call.error
        return call.value  # type: ignore[return-value]  # set by `run` unless it raised
