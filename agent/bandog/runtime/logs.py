"""Our own log: through a bounded queue to a thread, so that a stopped journald can never hold the loop.

One line an event, `key=value` at its end. Under systemd those pairs become fields of the journal
entry (`BANDOG_<KEY>`). A message that repeats is limited per key; what was dropped is counted.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import re
import sys
from collections.abc import Callable, Iterable

_PAIR = re.compile(r"\b([a-z][a-z0-9_]*)=(\S+)")
_BURST = 20
_WINDOW = 60.0
_MOST_KEYS = 1000


class _Bounded(logging.handlers.QueueHandler):
    """Drops instead of waiting when the queue is full."""

    def __init__(self, held: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(held)
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class RateLimit(logging.Filter):
    """Lets a message (by logger and format string) pass 20 times a minute and says how many it held back."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Count the record; True while its key is within the limit."""
        key = (record.name, str(record.msg))
        begun, count = self._seen.get(key, [record.created, 0.0])
        if record.created - begun >= _WINDOW:
            held = int(count) - _BURST
            begun, count = record.created, 0.0
            if held > 0:
                record.msg = f"{record.msg} held_back={held}"
        self._seen[key] = [begun, count + 1]
        if len(self._seen) > _MOST_KEYS:
            self._seen.clear()
        return count < _BURST


class Logs:
    """The set-up of logging for the daemon; `stop` flushes what is queued, for a second at most."""

    def __init__(self, level: str, filters: Iterable[logging.Filter] = ()) -> None:
        held: queue.Queue[logging.LogRecord] = queue.Queue(maxsize=2000)
        self._handler = _Bounded(held)
        self._handler.addFilter(RateLimit())
        for one in filters:
            self._handler.addFilter(one)
        self._listener = logging.handlers.QueueListener(held, _sink())
        root = logging.getLogger()
        for old in list(root.handlers):
            root.removeHandler(old)
        root.addHandler(self._handler)
        root.setLevel(level.upper())
        # Libraries say nothing that an operator could act on below this.
        for noisy in ("apprise", "urllib3", "asyncio", "dbus_fast", "requests"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        self._listener.start()

    @property
    def dropped(self) -> int:
        """Lines that found the queue full."""
        return self._handler.dropped

    def stop(self) -> None:
        """Write what is queued; a sink that is stuck is left behind with its daemon thread."""
        thread = self._listener._thread
        self._listener.enqueue_sentinel()
        if thread is not None:
            thread.join(timeout=1.0)


def _sink() -> logging.Handler:
    if os.environ.get("JOURNAL_STREAM"):
        try:
            from systemd.journal import send
        except ImportError:
            return _Levelled()
        return _Journal(send)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    return handler


def _priority(level: int) -> int:
    """Return the syslog level of a logging level."""
    for least, priority in ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6)):
        if level >= least:
            return priority
    return 7


class _Journal(logging.Handler):
    """Native journal entries with fields."""

    def __init__(self, send: Callable[..., None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            fields = {f"BANDOG_{key.upper()}": value for key, value in _PAIR.findall(record.getMessage())}
            self._send(
                text, PRIORITY=str(_priority(record.levelno)), SYSLOG_IDENTIFIER="bandog", LOGGER=record.name, **fields
            )
        except OSError:
            self.handleError(record)


class _Levelled(logging.StreamHandler):  # type: ignore[type-arg]  # generic only in the stubs
    """Lines on stderr with the level in front, as sd-daemon(3) reads them."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_priority(record.levelno)}>{super().format(record)}"
