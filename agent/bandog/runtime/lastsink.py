"""The last sink: a line to the kernel log and to everyone logged in, when nobody else can be told.

It needs no network, no journal and no disk. The line goes out with facility `user`, so that our own
reader, which counts only kernel lines, never takes it for a fault.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..domain.model import Instant
from ..host.paths import Paths
from ..host.site import ChildOutcome, Clock
from .secrets import Secrets
from .wording import plain

# Documentation/ABI/testing/dev-kmsg: "<N>" with N = facility << 3 | level; facility 1 is user.
_WARNING = 1 << 3 | 4
# Level 2, critical, passes `quiet` on the console, whose log level is 4 (Documentation/admin-guide/sysctl/kernel.rst).
_CRITICAL = 1 << 3 | 2
_LINE = 800  # printk cuts a record at about 1,000 bytes
_BURST = 5
_EVERY = timedelta(seconds=30)
_WALL = timedelta(seconds=10)

RunChild = Callable[..., ChildOutcome]
"""`Site.child`."""


class LastSink:
    """Opened once at start; `tell` may block for as long as `wall` takes, so it has a thread of its own."""

    def __init__(
        self,
        paths: Paths,
        clock: Clock,
        secrets: Secrets,
        *,
        child: RunChild | None = None,
        wall: Sequence[str] = ("wall",),
    ) -> None:
        self._clock = clock
        self._secrets = secrets
        self._child = child
        self._wall = tuple(wall)
        self._lock = threading.Lock()
        self._tokens = float(_BURST)
        self._filled: Instant | None = None
        self.suppressed = 0
        try:
            self._kmsg: int | None = os.open(paths.kmsg, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._kmsg = None

    def tell(self, text: str, *, urgent: bool = False) -> bool:
        """Write one line, and for a page to all terminals; False when the rate limit swallowed it."""
        with self._lock:
            if not self._may():
                self.suppressed += 1
                return False
            left_out, self.suppressed = self.suppressed, 0
        more = f" ({left_out} earlier messages were left out)" if left_out else ""
        line = self._secrets.mask(plain(text, _LINE)) + more
        self._to_kernel(line, _CRITICAL if urgent else _WARNING)
        if urgent and self._child is not None:
            self._child([*self._wall], stdin=f"bandog: {line}\n".encode(), deadline=_WALL, limit=4096)
        return True

    def close(self) -> None:
        """Close the device."""
        if self._kmsg is not None:
            os.close(self._kmsg)
            self._kmsg = None

    def _may(self) -> bool:
        now = self._clock.now()
        if self._filled is not None:
            self._tokens = min(_BURST, self._tokens + now.since(self._filled) / _EVERY)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _to_kernel(self, line: str, level: int) -> None:
        if self._kmsg is None:
            return
        try:
            os.write(self._kmsg, f"<{level}>bandog: {line}".encode("utf-8", "replace"))
        except OSError:
            return
