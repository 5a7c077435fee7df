"""Who listens outside the agent: PID 1 for its pings, and a person at the console for the last sink."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from pathlib import Path


class NotifySocket:
    """The socket of sd_notify(3): `pings` are the moments of WATCHDOG=1, `status` the newest STATUS=."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ready = 0
        self.status = ""
        self.pings: list[float] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen, name="notify", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(4096):
            for line in data.decode("utf-8", "replace").splitlines():
                word, _, rest = line.partition("=")
                if word == "WATCHDOG":
                    self.pings.append(time.monotonic())
                elif word == "STATUS":
                    self.status = rest
                elif word == "READY":
                    self.ready += 1

    def worst_gap(self, since: float) -> float:
        """Return the longest time without a ping from `since` until now, in seconds."""
        moments = [since, *(one for one in self.pings if one > since), time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))

    def close(self) -> None:
        """Stop listening."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))
        self._thread.join(5)
        self._socket.close()


class Console:
    """The reading end of the kernel log's device, where the last sink writes; `text` is what came."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.text = ""
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> str:
        """Return all that was written so far."""
        try:
            while data := os.read(self._file, 1 << 16):
                self.text += data.decode("utf-8", "replace") + "\n"
        except BlockingIOError:
            pass
        return self.text

    def close(self) -> None:
        """Close it."""
        os.close(self._file)
