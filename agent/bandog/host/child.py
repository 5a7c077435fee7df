"""Runs other programs: each in its own session, with a deadline, a clean environment and a death signal.

A child in D state dies of nothing. It is abandoned and counted, no second one of its program is
started, and it is reaped when the kernel lets it go (DESIGN section 6).

PR_SET_PDEATHSIG (prctl(2)) fires when the *thread* that made the child ends, so all children are
made by one thread that lives as long as the process. The signal itself is set by `setpriv`
(util-linux, essential on Debian), which then becomes the program: no Python runs between fork and
exec, and an exec that hangs on a dead file system hangs the child, not us.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO

from .site import ChildOutcome

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LANG": "C.UTF-8"}
SETPRIV = "/usr/bin/setpriv"
NEVER_PASSED = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})
"""What systemd gave to us alone (sd_notify(3)); gpud leaked it to its children (gpud#1216)."""

TERM_GRACE = timedelta(seconds=2)
"""From SIGTERM to SIGKILL: SIGKILL inside a driver call has cost a host (NVIDIA/dcgm-exporter#84)."""
KILL_GRACE = timedelta(seconds=1)
"""From SIGKILL to giving up."""
EOF_GRACE = timedelta(milliseconds=500)
"""From the program's end to closing pipes that something of its own still holds."""
OOM_SCORE_ADJ = b"500"
"""proc(5): the kernel's memory killer takes a child before it takes us."""
REAP_EVERY_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class _Order:
    argv: list[str]
    env: dict[str, str]
    stdin: bool
    made: Future[subprocess.Popen[bytes]] = field(default_factory=Future)


@dataclass(slots=True)
class _Stuck:
    name: str
    process: subprocess.Popen[bytes]


class Children:
    """Starts programs and looks after them; one object for the whole process. Thread-safe."""

    def __init__(self, *, term_grace: timedelta = TERM_GRACE, kill_grace: timedelta = KILL_GRACE) -> None:
        self.abandoned = 0
        self.graces = ((signal.SIGTERM, term_grace), (signal.SIGKILL, kill_grace))
        self._setpriv = os.access(SETPRIV, os.X_OK)
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stuck: list[_Stuck] = []

    @property
    def stuck(self) -> tuple[str, ...]:
        """The programs that did not even die of SIGKILL and are still there."""
        self._reap()
        return tuple(one.name for one in self._stuck)

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        """Run `argv` and return how it ended; blocks for `deadline` and 3 s of killing at most.

        Its environment is PATH, LANG and `env`. At most `limit` bytes each of its output and its
        errors are kept, the rest is read and dropped. A program that cannot be started ends with
        127, as in a shell. While an abandoned child of the same program is still there, nothing is
        started and the outcome is `stuck`.
        """
        until = time.monotonic() + deadline.total_seconds()
        process = self.start(argv, until=until, stdin=bool(stdin), env=env)
        if isinstance(process, ChildOutcome):
            return process
        return _Run(self, process, name_of(argv), limit).conduct(stdin, until)

    def start(
        self, argv: Sequence[str], *, until: float, stdin: bool, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes] | ChildOutcome:
        """Make a child whose end is the caller's to see to, or say why there is none; blocks until `until` at most.

        `until` is a moment of CLOCK_MONOTONIC in seconds.
        """
        if not argv:
            return ChildOutcome(code=127, err=b"no program given")
        name = name_of(argv)
        if name in self.stuck:
            return ChildOutcome(code=None, err=f"an earlier {name} still hangs".encode(), stuck=True)
        surroundings = {**ENVIRONMENT, **(env or {})}
        for word in NEVER_PASSED:
            surroundings.pop(word, None)
        program = shutil.which(argv[0], path=surroundings["PATH"])
        if program is None:
            return ChildOutcome(code=127, err=f"{argv[0]}: no such program in {surroundings['PATH']}".encode())
        try:
            return self._spawn(name, [program, *argv[1:]], surroundings, stdin, until)
        except FutureTimeout:
            return ChildOutcome(code=None, err=b"starting programs hangs", timed_out=True, stuck=True)
        except (OSError, ValueError) as error:
            return ChildOutcome(code=127, err=f"{argv[0]}: {error}".encode("utf-8", "replace"))

    def close(self) -> None:
        """End the thread that makes children; every child that still runs gets its death signal."""
        with self._lock:
            if self._thread is not None:
                self._orders.put(None)

    def abandon(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Stop waiting for a child that does not die; it is reaped later."""
        with self._lock:
            self.abandoned += 1
            self._stuck.append(_Stuck(name, process))
        # The thread looks after it from now on, and sleeps without end as long as there is none.
        self._orders.put(_NUDGE)

    def _spawn(
        self, name: str, argv: list[str], env: dict[str, str], stdin: bool, until: float
    ) -> subprocess.Popen[bytes]:
        if self._setpriv:
            argv = [SETPRIV, "--pdeathsig", "KILL", "--", *argv]
        order = _Order(argv=argv, env=env, stdin=stdin)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="child-maker", daemon=True)
                self._thread.start()
        self._orders.put(order)
        try:
            return order.made.result(max(0.0, until - time.monotonic()))
        except FutureTimeout:
            if not order.made.cancel():
                order.made.add_done_callback(lambda made: self._end_late_comer(made, name))
            raise

    def _end_late_comer(self, made: Future[subprocess.Popen[bytes]], name: str) -> None:
        """A child came to be after its caller had gone: kill it and let it be reaped with the stuck ones."""
        if made.exception() is not None:
            return
        process = made.result()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self.abandon(name, process)

    def _serve(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=REAP_EVERY_SECONDS if self._stuck else None)
            except queue.Empty:
                self._reap()
                continue
            if order is None:
                return
            if order is not _NUDGE and order.made.set_running_or_notify_cancel():
                _make(order)
            self._reap()

    def _reap(self) -> None:
        with self._lock:
            self._stuck = [one for one in self._stuck if one.process.poll() is None]


_NUDGE = _Order(argv=[], env={}, stdin=False)


def name_of(argv: Sequence[str]) -> str:
    """Return what a stuck child is known by: its program, or the module that a Python runs."""
    if "-m" in argv[1:-1]:
        return argv[argv.index("-m", 1) + 1]
    return Path(argv[0]).name


def _make(order: _Order) -> None:
    try:
        process = subprocess.Popen(
            order.argv,
            stdin=subprocess.PIPE if order.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=order.env,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        order.made.set_exception(error)
        return
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_bytes(OOM_SCORE_ADJ)
    order.made.set_result(process)


class _Run:
    """One child from its start to its end, in the thread of the caller."""

    def __init__(self, owner: Children, process: subprocess.Popen[bytes], name: str, limit: int) -> None:
        self._owner = owner
        self._process = process
        self._name = name
        self._limit = limit
        self._kept: dict[int, bytearray] = {}
        self._open: dict[int, IO[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._input = b""

    def conduct(self, stdin: bytes, until: float) -> ChildOutcome:
        """Feed it, read it, end it when its time is over, and say how it ended."""
        out, err, pid_file = self._prepare(stdin)
        try:
            ended = self._wait(pid_file, until)
            timed_out = not ended
            for number, grace in self._owner.graces:
                if ended:
                    break
                self._signal(number)
                ended = self._wait(pid_file, time.monotonic() + grace.total_seconds())
            self._selector.unregister(pid_file)
            if ended:
                self._drain()
        finally:
            self._selector.close()
            os.close(pid_file)
            for stream in tuple(self._open.values()):
                stream.close()
        return self._outcome(ended, timed_out, out, err)

    def _prepare(self, stdin: bytes) -> tuple[int, int, int]:
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        for stream in (process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
            self._kept[stream.fileno()] = bytearray()
            self._open[stream.fileno()] = stream
            self._selector.register(stream.fileno(), selectors.EVENT_READ)
        if process.stdin is not None:
            self._input = stdin
            os.set_blocking(process.stdin.fileno(), False)
            self._open[process.stdin.fileno()] = process.stdin
            self._selector.register(process.stdin.fileno(), selectors.EVENT_WRITE)
        pid_file = os.pidfd_open(process.pid)
        self._selector.register(pid_file, selectors.EVENT_READ)
        return process.stdout.fileno(), process.stderr.fileno(), pid_file

    def _wait(self, pid_file: int, until: float) -> bool:
        """Read and write until the child has ended (True) or the time has come."""
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.fd == pid_file:
                    return True
                self._serve(key.fd)
        return False

    def _drain(self) -> None:
        """Read what is left in the pipes, then end whatever of its group still holds them.

        The leader has ended but is not reaped yet, so its group's number cannot be another's.
        """
        until = time.monotonic() + EOF_GRACE.total_seconds()
        outputs = set(self._kept)
        while outputs & set(self._open) and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._serve(key.fd)
        self._signal(signal.SIGKILL)

    def _serve(self, number: int) -> None:
        try:
            if number not in self._kept:
                self._input = self._input[os.write(number, self._input[:65536]) :]
                if self._input:
                    return
            elif chunk := os.read(number, 65536):
                room = self._limit - len(self._kept[number])
                self._kept[number] += chunk[: max(0, room)]
                return
        except BlockingIOError:
            return
        except OSError:  # It does not read its input any more.
            pass
        self._selector.unregister(number)
        self._open.pop(number).close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _outcome(self, ended: bool, timed_out: bool, out: int, err: int) -> ChildOutcome:
        kept_out, kept_err = bytes(self._kept[out]), bytes(self._kept[err])
        if not ended:
            self._owner.abandon(self._name, self._process)
            return ChildOutcome(code=None, out=kept_out, err=kept_err, timed_out=True, stuck=True)
        code = self._process.wait()
        return ChildOutcome(code=None if timed_out else code, out=kept_out, err=kept_err, timed_out=timed_out)
