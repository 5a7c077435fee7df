"""A kernel log that a test writes: one datagram a record, as /dev/kmsg gives one record a read."""

from __future__ import annotations

import os
import socket
import time


class KernelLog:
    """The writing end; `open` gives the reader a descriptor like that of /dev/kmsg."""

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
        safe = "".join(c if 0x20 <= ord(c) < 0x7F and c != "\\" else _escape(c) for c in text)
        self._writer.send(f"{priority},{self._sequence},{usec},-;{safe}\n".encode())
        self._sequence += 1

    def close(self) -> None:
        """Close both ends."""
        self._writer.close()
        self._reader.close()


def _escape(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
