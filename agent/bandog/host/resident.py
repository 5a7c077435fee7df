"""A child that stays: asked one line at a time, it answers with one line, each time under a deadline.

For programs whose start costs more than their work. One that does not answer is ended: SIGTERM, then SIGKILL,
and in D state it is abandoned like any other child; none of its program is started while it is still there. The
next question after an end starts a new one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta

from .child import Children, name_of
from .site import Answer, ChildOutcome

SAID = 2000
"""Bytes kept of what the program wrote to its standard error, for the words on its end."""


class Resident:
    """Implements `host.site.Resident`: one program, at most one living child of it. Thread-safe."""

    def __init__(
        self, children: Children, argv: Sequence[str], *, env: Mapping[str, str] | None = None, limit: int = 1 << 20
    ) -> None:
        self.started = 0
        self._children = children
        self._argv = tuple(argv)
        self._env = dict(env or {})
        self._limit = limit
        self._talk: _Talk | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The living child, None where there is none."""
        talk = self._talk
        return None if talk is None else talk.process.pid

    @property
    def stuck(self) -> bool:
        """True while an abandoned child of this program is still there."""
        return name_of(self._argv) in self._children.stuck

    def ask(self, line: bytes, *, deadline: timedelta) -> Answer:
        """Say `line` (without its end) and return the line that comes back; blocks for `deadline` plus the graces.

        `limit` bounds the answer; a longer one, or anything after its end, counts as rubbish and ends the child.
        """
        if not self._lock.acquire(blocking=False):
            return Answer(line=None, why="an earlier question has not been answered", timed_out=True, stuck=True)
        try:
            return self._ask(line, time.monotonic() + deadline.total_seconds())
        finally:
            self._lock.release()

    def end(self) -> None:
        """End the child, if there is one; blocks for the graces at most."""
        with self._lock:
            self._end()

    def _ask(self, line: bytes, until: float) -> Answer:
        if self._talk is None:
            begun = self._children.start(self._argv, until=until, stdin=True, env=self._env)
            if isinstance(begun, ChildOutcome):
                why = begun.err.decode("utf-8", "replace")
                return Answer(line=None, why=why, timed_out=begun.timed_out, stuck=begun.stuck)
            self.started += 1
            self._talk = _Talk(begun, self._limit)
        talk = self._talk
        try:
            return Answer(line=talk.exchange(line, until))
        except TimeoutError:
            stuck = not self._end()
            return Answer(line=None, why="it gave no answer", timed_out=True, stuck=stuck)
        except _Over as error:
            words = talk.words()
            self._end()
            return Answer(line=None, why=f"{error}{words}")

    def _end(self) -> bool:
        """End the child and return whether it has ended; one that has not is abandoned."""
        talk, self._talk = self._talk, None
        if talk is None:
            return True
        try:
            for number, grace in self._children.graces:
                talk.signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    talk.process.wait(grace.total_seconds())
                    return True
            self._children.abandon(name_of(self._argv), talk.process)
            return False
        finally:
            talk.close()


class _Over(Exception):
    """The talk cannot go on; the text says why."""


class _Talk:
    """The pipes of one child. What it says on its standard error is read along, so that it never blocks on it."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._limit = limit
        self._in, self._out, self._err = (one.fileno() for one in (process.stdin, process.stdout, process.stderr))
        self._said: deque[int] = deque(maxlen=SAID)
        self._selector = selectors.DefaultSelector()
        for number in (self._in, self._out, self._err):
            os.set_blocking(number, False)
        for number in (self._out, self._err):
            self._selector.register(number, selectors.EVENT_READ)

    def exchange(self, line: bytes, until: float) -> bytes:
        """Return the answer to one line; raises TimeoutError, or _Over when the program ended or talks rubbish."""
        heard = bytearray()
        left = line + b"\n"
        while True:
            left = self._write(left)
            self._watch_input(bool(left))
            if (seconds := until - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in self._selector.select(seconds):
                if key.fd == self._err:
                    self._listen()
                elif key.fd == self._out:
                    chunk = self._read(self._out)
                    if chunk == b"":
                        raise _Over(f"it ended{self._how()}")
                    heard += chunk or b""
            end = heard.find(b"\n")
            if len(heard) > self._limit or -1 < end < len(heard) - 1 or (end >= 0 and left):
                raise _Over("it talks rubbish")
            if end >= 0:
                return bytes(heard[:end])

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def words(self) -> str:
        """Return the last line that it wrote to its standard error, after a colon; "" for none."""
        self._listen()
        lines = bytes(self._said).decode("utf-8", "replace").split("\n")
        last = next((one.strip() for one in reversed(lines) if one.strip()), "")
        return f": {last[:300]}" if last else ""

    def close(self) -> None:
        self._selector.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def _how(self) -> str:
        """Its end by status or signal, where that is known already."""
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        return f" with status {code}" if code >= 0 else f" by signal {-code}"

    def _write(self, left: bytes) -> bytes:
        if not left:
            return left
        try:
            return left[os.write(self._in, left) :]
        except BlockingIOError:
            return left
        except OSError:
            raise _Over(f"it ended{self._how()}") from None

    def _watch_input(self, wanted: bool) -> None:
        watched = self._in in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(self._in, selectors.EVENT_WRITE)
        elif watched and not wanted:
            self._selector.unregister(self._in)

    def _listen(self) -> None:
        while chunk := self._read(self._err):
            self._said.extend(chunk)
        if chunk == b"" and self._err in self._selector.get_map():
            self._selector.unregister(self._err)

    @staticmethod
    def _read(number: int) -> bytes | None:
        """Return what is there, b"" at the end, None where nothing is there yet."""
        try:
            return os.read(number, 65536)
        except BlockingIOError:
            return None
        except OSError:
            return b""
