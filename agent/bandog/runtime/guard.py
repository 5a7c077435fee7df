"""Bounds the time that a plugin may hold the loop.

A log detector runs on the loop. Python cannot stop a call from outside, but a signal handler may
raise inside it: a small thread sees that one call has lasted too long and sends the loop's thread
a signal, whose handler raises `PluginTimeout` at that very place. The plugin is then taken out.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import Any, Generic, TypeVar

from .holding import LOOP, Holding

T = TypeVar("T")

SIGNAL = signal.SIGRTMIN + 3
"""Free for applications; systemd uses SIGRTMIN+0 … +29 only towards PID 1."""

_LOOKS = 4
"""So often the watching thread looks within the limit: a call ends at most a quarter of it late."""


class PluginTimeout(BaseException):
    """A plugin held the loop too long; not an Exception, so that the plugin's own `except` lets it pass."""


class Guard:
    """Watches one call at a time on the main thread; costs a few assignments a call.

    `holding`, if there is one, keeps the name of the plugin that is called for the case that it ends the process.
    """

    def __init__(
        self, limit: timedelta = timedelta(seconds=2), holding: Holding | None = None, slot: int = LOOP
    ) -> None:
        self._limit = limit.total_seconds()
        self._holding = holding
        self._slot = slot
        self._call: tuple[str, int] | None = None
        self._count = 0
        self._main = threading.main_thread().ident or 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; only the main thread may call it, as signal handlers run there."""
        signal.signal(SIGNAL, self._interrupt)
        self._thread = threading.Thread(target=self._watch, name="plugin-guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching and put the signal back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
            signal.signal(SIGNAL, signal.SIG_IGN)

    @contextlib.contextmanager
    def running(self) -> Iterator[Guard]:
        """Watch for the length of the block."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    @contextlib.contextmanager
    def watch(self, name: str, call: int = 0) -> Iterator[None]:
        """Let the block of plugin `name` run for at most the limit; raises PluginTimeout in it after that.

        `call` tells one call from another, should the agent die in it: the stamp of a record.
        """
        self._count += 1
        self._call = (name, self._count)
        if self._holding is not None:
            self._holding.hold(name, self._slot, call)
        try:
            yield
        finally:
            self._call = None
            if self._holding is not None:
                self._holding.let_go(self._slot)

    def steps(self, name: str, work: Coroutine[Any, Any, T]) -> Watched[T]:
        """Return `work` of plugin `name` as an awaitable; each of its steps on the loop is watched."""
        return Watched(self, name, work)

    def proof(self, name: str, method: str) -> AbstractContextManager[None]:
        """Return what to enter, in whatever thread, while a `method` that proves action `name` is at work there."""
        return self._holding.proof(name, method) if self._holding is not None else nullcontext()

    def _watch(self) -> None:
        seen: tuple[str, int] | None = None
        looks = 0
        while not self._stop.wait(self._limit / _LOOKS):
            call = self._call
            looks = looks + 1 if call is not None and call == seen else 0
            if looks >= _LOOKS:
                signal.pthread_kill(self._main, SIGNAL)
            seen = call

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._call is not None:
            name, _ = self._call
            self._call = None
            raise PluginTimeout(f"{name} held the loop for more than {self._limit:g} s")


class Watched(Generic[T]):
    """A coroutine that holds the loop from one `await` to the next, like a call that is made again and again."""

    def __init__(self, guard: Guard, name: str, work: Coroutine[Any, Any, T]) -> None:
        self._guard = guard
        self._name = name
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        """Pass on whatever it waits for, and whatever comes of that."""
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                with self._guard.watch(self._name):
                    waits_for = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            value, error = None, None
            try:
                value = yield waits_for
            except BaseException as thrown:  # a cancellation, for one: it is the coroutine's to answer
                error = thrown
