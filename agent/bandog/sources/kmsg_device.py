"""The file behind the kernel's log: opened, read on the loop in bounded turns, opened again after every error.

`/dev/kmsg` gives one record a read (Linux `Documentation/ABI/testing/dev-kmsg`). A packet socket does
the same; a FIFO and a regular file, as tests and the demo use, are cut into records here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

# A record with its fields is at most 8 KiB (PRINTK_MESSAGE_MAX, kernel/printk/internal.h); a smaller
# buffer gets EINVAL and loses the record.
_BUFFER = 16 * 1024
# One turn of the loop reads so many records or so long, then ticks and pings have their turn.
_TURN_RECORDS = 2000
_TURN_SECONDS = 0.02
_TURN_CHECK = 128
_REOPEN_FIRST = 0.1
_REOPEN_MOST = 5.0
_POLL_SECONDS = 0.1
_BAD_READS = 64


def open_kmsg(path: Path) -> int:
    """Open the kernel's log for non-blocking reads at the oldest record held; raises OSError.

    A FIFO is opened for writing too, so that it never ends.
    """
    flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    fifo = stat.S_ISFIFO(path.stat().st_mode)
    return os.open(path, flags | (os.O_RDWR if fifo else os.O_RDONLY))


class KmsgDevice:
    """Gives each record's bytes to `on_record`, and calls `on_drained` whenever there is no more for now.

    `on_reopen` is called before the log is opened again: it then begins at its oldest record.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_record: Callable[[bytes], None],
        on_drained: Callable[[], None],
        on_reopen: Callable[[], None],
        opener: Callable[[Path], int] = open_kmsg,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path, self._opener, self._read = path, opener, read
        self._on_record, self._on_drained, self._on_reopen = on_record, on_drained, on_reopen
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = _REOPEN_FIRST
        self._stream: bytes | None = None
        self._regular = False
        self._more = True
        self._bad_reads = 0
        self.overruns = 0
        self.unreadable = 0
        self.reopened = 0
        self.problem: str | None = "not started"

    def start(self) -> None:
        """Open the log; what fails is tried again by itself, each time twice as late, at most every 5 s."""
        self._timer = None
        try:
            self._fd = self._opener(self._path)
            mode = os.fstat(self._fd).st_mode
        except OSError as error:
            self._fail(error)
            return
        self._regular = stat.S_ISREG(mode)
        self._stream = b"" if self._regular or stat.S_ISFIFO(mode) else None
        self._bad_reads = 0
        self.problem = None
        loop = asyncio.get_running_loop()
        if self._regular:
            self._timer = loop.call_later(0, self._poll)
        else:
            loop.add_reader(self._fd, self._on_readable)
            loop.call_soon(self._on_readable)

    def stop(self) -> None:
        """Close the log."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            if not self._regular:
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _fail(self, error: OSError) -> None:
        self.stop()
        code = errno.errorcode.get(error.errno or 0, "?")
        problem = f"{self._path}: {error.strerror} ({code})"
        if problem != self.problem:
            log.warning("cannot read the kernel log, trying again path=%s errno=%s", self._path, code)
        self.problem = problem
        self.reopened += 1
        self._on_reopen()
        self._timer = asyncio.get_running_loop().call_later(self._backoff, self.start)
        self._backoff = min(self._backoff * 2, _REOPEN_MOST)

    def _poll(self) -> None:
        """A regular file is always readable, so it is looked at by the clock instead."""
        self._timer = asyncio.get_running_loop().call_later(0 if self._more else _POLL_SECONDS, self._poll)
        self._on_readable()

    def _on_readable(self) -> None:
        """Read until the log is empty or the turn is over; the loop calls again while there is more."""
        if self._fd is None:
            return
        clock = asyncio.get_running_loop().time
        until = clock() + _TURN_SECONDS
        self._more = True
        for count in range(1, _TURN_RECORDS + 1):
            raw = self._read_one() if self._stream is None else self._cut_one(self._stream)
            if raw is None:
                return
            if raw:
                self._backoff = _REOPEN_FIRST
                self._on_record(raw)
            if self._fd is None or (count % _TURN_CHECK == 0 and clock() > until):
                return

    def _read_one(self) -> bytes | None:
        """Return the next record, b"" for one that could not be read, None when there is none now."""
        assert self._fd is not None
        try:
            raw = self._read(self._fd, _BUFFER)
        except BlockingIOError:
            self._drained()
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:  # overrun: the position is at the oldest record by now
                self.overruns += 1
                return b""
            if error.errno == errno.EINVAL and self._bad_reads < _BAD_READS:  # one record, consumed
                self._bad_reads += 1
                self.unreadable += 1
                return b""
            self._fail(error)
            return None
        self._bad_reads = 0
        if not raw:
            self._fail(OSError(errno.EPIPE, "end of file"))
            return None
        return raw

    def _cut_one(self, held: bytes) -> bytes | None:
        """Cut a record out of a byte stream: a line and the lines after it that begin with a blank."""
        assert self._fd is not None
        end = _record_end(held)
        while end is None:
            try:
                more = self._read(self._fd, _BUFFER)
                if not more and not self._regular:
                    raise OSError(errno.EPIPE, "end of file")
            except BlockingIOError:
                more = b""
            except OSError as error:
                self._fail(error)
                return None
            if not more:
                end = len(held) if held.endswith(b"\n") or len(held) > _BUFFER else 0
                break
            held += more
            end = _record_end(held)
        self._stream = held[end:]
        if not end:
            self._drained()
            return None
        return held[:end]

    def _drained(self) -> None:
        self._more = False
        self._on_drained()


def _record_end(held: bytes) -> int | None:
    """Return where the first record of a stream ends, None while that cannot be told."""
    end = held.find(b"\n")
    while end >= 0:
        if end + 1 >= len(held):
            return None
        if held[end + 1 : end + 2] != b" ":
            return end + 1
        end = held.find(b"\n", end + 1)
    return None
