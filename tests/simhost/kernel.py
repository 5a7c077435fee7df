"""Kernel logs that a test writes: a socket for an agent in the test's own process, a file for one that dies."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def record(text: str, *, sequence: int, usec: int, priority: int = 4) -> bytes:
    """Return a line as /dev/kmsg gives it; `priority` 8 and more is a process's own line."""
    safe = "".join(c if 0x20 <= ord(c) < 0x7F and c != "\\" else _escape(c) for c in text)
    return f"{priority},{sequence},{usec},-;{safe}\n".encode()


def _escape(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


class KernelLog:
    """One datagram a record, as /dev/kmsg gives one record a read; `open` gives the reader its descriptor."""

    def __init__(self) -> None:
        self._writer, self._reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader.setblocking(False)
        self._sequence = 0

    def open(self, *_: object) -> int:
        """Return a new descriptor to read records from."""
        return os.dup(self._reader.fileno())

    def print(self, text: str, priority: int = 4) -> None:
        """Print a line as the kernel does; `priority` 8 and more is a process's own line."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._writer.send(record(text, sequence=self._sequence, usec=usec, priority=priority))
        self._sequence += 1

    def close(self) -> None:
        """Close both ends."""
        self._writer.close()
        self._reader.close()


class KernelFile:
    """A log that outlives its readers: each of them begins at the oldest record, as after an open of /dev/kmsg."""

    def __init__(self, path: Path, usec: Callable[[], int]) -> None:
        self.path = path
        self._usec = usec
        self._sequence = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def newest(self) -> int:
        """The number of the newest line; -1 before the first."""
        return self._sequence - 1

    def print(self, text: str, priority: int = 4) -> None:
        """Print a line as the kernel does."""
        self.flood((text,), priority)

    def flood(self, texts: Iterable[str], priority: int = 4) -> None:
        """Print many lines in one go."""
        lines = []
        for text in texts:
            lines.append(record(text, sequence=self._sequence, usec=self._usec(), priority=priority))
            self._sequence += 1
        os.write(self._file, b"".join(lines))

    def garble(self, raw: bytes) -> None:
        """Write bytes that are no record."""
        os.write(self._file, raw)

    def close(self) -> None:
        """Close the writing end."""
        os.close(self._file)
