"""Processes as vLLM has them: forked, renamed, joined by channels that end when the other side dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Channel:
    """One end of a pair of sockets that carries JSON, a line each."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unread = b""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two joined ends."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    def fileno(self) -> int:
        """The descriptor, for select."""
        return self._end.fileno()

    def send(self, message: Message) -> None:
        """Send one message; a dead other side is nothing to us."""
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """Return what has come, at least a part of a message if it is readable; None at the end."""
        try:
            piece = self._end.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:
            return None
        *lines, self._unread = (self._unread + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Let the other side see the end."""
        self._end.close()


def say(text: str) -> None:
    """Print a line as vLLM's loggers do, with the process before it."""
    print(f"({Path('/proc/self/comm').read_text().strip()} pid={os.getpid()}) {text}", flush=True)


def rename(title: str) -> None:
    """Set the name (the kernel keeps 15 bytes of it) and the command line, as setproctitle does."""
    Path("/proc/self/comm").write_text(title)
    # Past the name there may be blanks and brackets: fields count from the last bracket (proc_pid_stat(5)).
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        memory.seek(start)
        memory.write(title.encode()[: end - start - 1].ljust(end - start, b"\0"))


def fork(title: str, keep: Channel, work: Callable[[], int]) -> int:
    """Run `work` in a child of that title with no descriptor of ours but `keep`; return its pid.

    A descriptor too many in a child would keep another channel open after its owner has died.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, _leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in [int(one) for one in os.listdir("/proc/self/fd")]:  # noqa: PTH208
            if number > 2 and number != keep.fileno():
                with contextlib.suppress(OSError):
                    os.close(number)
        rename(title)
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _leave(*_: object) -> None:
    """Leave once: a second SIGTERM must not break into the leaving."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def alive(pid: int) -> bool:
    """True while the process runs; a zombie holds nothing any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def release(fifo: Path) -> None:
    """Let whoever waits in D state for a writer go on; nothing happens where nobody does."""
    with contextlib.suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
