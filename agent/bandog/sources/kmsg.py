"""Reads the kernel's log from `/dev/kmsg`, on the loop, for as long as the agent lives.

The reader drops what is not the kernel's, counts what it could not read, and goes on after every
error: a deaf watchdog is worse than a missed line (DESIGN sections 4, 6 and 7).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ..domain.model import Instant, Record
from ..host.site import Clock
from .bookmark import Bookmark, Done, Neighbour, text_digest
from .kmsg_record import RawRecord, record_fields, record_text, split_record
from .prefilter import Prefilter

log = logging.getLogger(__name__)

Feed = Callable[[Record], None]

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
# local_clock() may differ from CLOCK_MONOTONIC by NTP's largest frequency correction, 500 ppm.
_DRIFT_PPM = 500
_SHIFT_FROM = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records `first` to `last` were never read. `before` is None when nothing is known of what came before."""

    first: int
    last: int
    before: Neighbour | None
    after: Neighbour

    @property
    def count(self) -> int:
        """How many records are missing."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsgState:
    """Counters since the start of the agent, for status and metrics.

    `problem` says why nothing is read at present, None while all is well. `caught_up` is the last
    moment at which the reader had read everything there was.
    """

    read: int
    wanted: int
    user_dropped: int
    malformed: int
    lost: int
    overruns: int
    reopened: int
    last_seq: int | None
    problem: str | None
    caught_up: Instant | None


def open_kmsg(path: Path) -> int:
    """Open the kernel's log for non-blocking reads at the oldest record held; raises OSError.

    A FIFO, as tests and the demo use in its place, is opened for writing too, so that it never ends.
    """
    flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    fifo = stat.S_ISFIFO(path.stat().st_mode)
    return os.open(path, flags | (os.O_RDWR if fifo else os.O_RDONLY))


class KmsgSource:
    """One reader of one kernel log; every method is for the loop.

    `needles` are those of all log detectors; while `is_open()` each kernel record is delivered.
    `mark` is the stored bookmark of this boot: what follows it is live. Without one everything that
    was there at the start is delivered as history, which may be told but never acted on. `on_gap`
    is called for each gap; the bookmark stays before it until `close_gap`.
    """

    name = "kmsg"

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        needles: Iterable[bytes],
        is_open: Callable[[], bool] = lambda: False,
        mark: Bookmark | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        opener: Callable[[Path], int] = open_kmsg,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path, self._clock, self._opener, self._os_read = path, clock, opener, read
        self._prefilter = Prefilter(needles)
        self._is_open, self._on_gap = is_open, on_gap
        self._boot_id = clock.now().boot_id
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = _REOPEN_FIRST
        self._stream: bytes | None = None
        self._regular = False
        self._feed: Feed = lambda record: None
        self._started = clock.now()
        self._history = mark is None
        self._caught_up: Instant | None = None
        self.drained = asyncio.Event()
        self._last: RawRecord | Neighbour | None = None if mark is None else mark.last
        self._last_seq: int | None = None if mark is None else mark.last.seq
        self._skip = mark is not None
        self._newest_skipped: int | None = None
        self._block: RawRecord | Neighbour | None = None
        self._block_open = False
        self._gaps: dict[Gap, RawRecord | Neighbour | None] = {}
        self._done = Done(() if mark is None else mark.done)
        self._upto = 0 if mark is None else mark.upto
        self._shift = timedelta(microseconds=0 if mark is None else mark.shift)
        self._lags: deque[timedelta] = deque(maxlen=8)
        self._woken = False
        self._read = self._wanted = self._user = self._malformed = self._lost = 0
        self._overruns = self._reopened = self._bad_reads = 0
        self._problem: str | None = "not started"

    # -- life ---------------------------------------------------------------------------------

    def start(self, feed: Feed) -> None:
        """Open the log and deliver records to `feed` from the loop's next turn on; never raises."""
        self._feed = feed
        self._started = self._clock.now()
        self._open()

    def stop(self) -> None:
        """Close the log; nothing is delivered any more."""
        self._close()

    def want(self, needles: Iterable[bytes]) -> None:
        """Replace the needles, after a reload."""
        self._prefilter = Prefilter(needles)

    @property
    def state(self) -> KmsgState:
        """The counters as they stand."""
        return KmsgState(
            read=self._read,
            wanted=self._wanted,
            user_dropped=self._user,
            malformed=self._malformed,
            lost=self._lost,
            overruns=self._overruns,
            reopened=self._reopened,
            last_seq=self._last_seq,
            problem=self._problem,
            caught_up=self._caught_up,
        )

    # -- bookmark -----------------------------------------------------------------------------

    def position(self) -> str | None:
        """Return the bookmark to store now, in `SaveCursor.position`; None before the first record."""
        if self._last is None:
            return None
        places = [self._last, *(place for place in self._gaps.values() if place is not None)]
        if self._block_open and self._is_open() and self._block is not None:
            places.append(self._block)
        last_seq = self._last.seq or 0
        return Bookmark(
            boot_id=self._boot_id,
            last=_neighbour(min(places, key=lambda one: one.seq or 0)),
            upto=max(last_seq, self._upto),
            shift=self._shift // timedelta(microseconds=1),
            done=self._done.all() if len(places) > 1 or last_seq < self._upto else (),
        ).to_text()

    def take(self, identity: str) -> bool:
        """Ask once for each finding, with its record's identity: False when it came before the restart already."""
        if self._done.is_repeat(identity):
            return False
        if (self._last_seq or 0) >= self._upto:
            if self._done.full:  # let go of what is half done, rather than risk that all comes twice
                self._block_open = False
                self._gaps.clear()
            if not self._gaps and not (self._block_open and self._is_open()):
                self._done.clear()
        self._done.add(identity)
        return True

    def close_gap(self, gap: Gap) -> None:
        """Say that what could be recovered of `gap` has been fed; the bookmark may pass it."""
        self._gaps.pop(gap, None)

    def at(self, usec: int) -> Instant:
        """Return the instant of a kernel stamp, corrected by the drift measured; never later than now."""
        at, now = self._clock.at_kernel_time(usec).plus(self._shift), self._clock.now()
        return at if at.boottime <= now.boottime else now

    # -- reading ------------------------------------------------------------------------------

    def _open(self) -> None:
        self._timer = None
        try:
            self._fd = self._opener(self._path)
            mode = os.fstat(self._fd).st_mode
        except OSError as error:
            self._fail(error)
            return
        self._regular = stat.S_ISREG(mode)
        self._stream = b"" if self._regular or stat.S_ISFIFO(mode) else None
        self._problem = None
        self._bad_reads = 0
        self._woken = False
        if self._regular:
            self._poll()
        else:
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
            asyncio.get_running_loop().call_soon(self._on_readable)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            if not self._regular:
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _fail(self, error: OSError) -> None:
        """Close what is open and try again later, each time twice as late, at most every 5 s."""
        self._close()
        code = errno.errorcode.get(error.errno or 0, "?")
        problem = f"{self._path}: {error.strerror} ({code})"
        if problem != self._problem:
            log.warning("cannot read the kernel log, trying again path=%s errno=%s", self._path, code)
        self._problem = problem
        self._reopened += 1
        self._skip = self._last_seq is not None
        self._newest_skipped = None
        self._timer = asyncio.get_running_loop().call_later(self._backoff, self._open)
        self._backoff = min(self._backoff * 2, _REOPEN_MOST)

    def _poll(self) -> None:
        """A regular file is always readable, so it is looked at by the clock instead."""
        self._on_readable()
        if self._fd is not None and self._regular:
            pause = _POLL_SECONDS if self._woken else 0.0
            self._timer = asyncio.get_running_loop().call_later(pause, self._poll)

    def _on_readable(self) -> None:
        """Read until the log is empty or the turn is over; the loop calls again while there is more."""
        if self._fd is None:
            return
        clock = asyncio.get_running_loop().time
        until = clock() + _TURN_SECONDS
        for count in range(1, _TURN_RECORDS + 1):
            raw = self._read_one()
            if raw is None:
                return
            if raw:
                self._backoff = _REOPEN_FIRST
                self._take_raw(raw)
            if self._fd is None or (count % _TURN_CHECK == 0 and clock() > until):
                return

    def _read_one(self) -> bytes | None:
        """Return the next record, b"" for one that could not be read, None when there is none now."""
        if self._stream is not None:
            return self._read_stream()
        try:
            raw = self._os_read(self._fd or 0, _BUFFER)
        except BlockingIOError:
            self._is_drained()
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:  # overrun: the position is at the oldest record by now
                self._overruns += 1
                return b""
            if error.errno == errno.EINVAL and self._bad_reads < _BAD_READS:  # one record, consumed
                self._bad_reads += 1
                self._malformed += 1
                return b""
            self._fail(error)
            return None
        self._bad_reads = 0
        if not raw:
            self._fail(OSError(errno.EPIPE, "end of file"))
            return None
        return raw

    def _read_stream(self) -> bytes | None:
        """Cut a record out of a byte stream: a line and the lines after it that begin with a blank."""
        held = self._stream or b""
        end = _record_end(held)
        while end is None:
            try:
                more = self._os_read(self._fd or 0, _BUFFER)
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
            self._is_drained()
            return None
        return held[:end]

    def _is_drained(self) -> None:
        """All that there was has been read: from here on records are new."""
        newest = self._newest_skipped
        if self._skip and newest is not None and self._last_seq is not None and newest < self._last_seq:
            # Every record that the log holds is older than the bookmark, which therefore lies.
            log.warning("the stored position is ahead of the kernel log position=%d", self._last_seq)
            self._last_seq, self._last, self._upto = newest, None, 0
        self._skip = self._history = False
        self._woken = True
        self._caught_up = self._clock.now()
        self.drained.set()

    # -- records ------------------------------------------------------------------------------

    def _take_raw(self, raw: bytes) -> None:
        head = split_record(raw)
        if head is None:
            self._malformed += 1
            return
        if self._woken:
            self._woken = False
            self._measure(head.usec)
        if not self._in_order(head):
            return
        before, self._last = self._last, head
        self._last_seq = head.seq
        self._read += 1
        if head.prio > 7:
            self._user += 1
            return
        was_open = self._is_open()
        if was_open or self._prefilter.wants(head.body):
            self._deliver(head, before, was_open)

    def _deliver(self, head: RawRecord, before: RawRecord | Neighbour | None, was_open: bool) -> None:
        self._wanted += 1
        at = self.at(head.usec)
        record = Record(
            text=record_text(head.body),
            at=at,
            source=self.name,
            live=self._is_live(at),
            level=head.prio & 7,
            seq=head.seq,
            usec=head.usec,
            fields=record_fields(head.body),
        )
        if not was_open:
            # Set before the call, for a commit that is made within it; it counts only while open.
            self._block, self._block_open = before, True
        self._feed(record)

    def _is_live(self, at: Instant) -> bool:
        """Without a bookmark only what came after our start is live, even while the ring never runs empty."""
        if not self._history:
            return True
        drift = self._started.boottime * _DRIFT_PPM / 1_000_000
        return at.boottime > self._started.boottime + drift

    def _in_order(self, head: RawRecord) -> bool:
        """Note a gap before the record; False for one that was read before the log was opened again."""
        last = self._last_seq
        if last is not None and head.seq <= last:
            if self._skip:
                self._newest_skipped = head.seq
            return not self._skip
        self._newest_skipped = None
        if last is None or head.seq == last + 1:
            return True
        self._lost += head.seq - last - 1
        gap = Gap(
            first=last + 1,
            last=head.seq - 1,
            before=None if self._last is None else _neighbour(self._last),
            after=_neighbour(head),
        )
        log.warning("kernel records were overwritten before they were read lost=%d from=%d", gap.count, gap.first)
        if self._on_gap is not None:
            self._gaps[gap] = self._last
            self._on_gap(gap)
        return True

    def _measure(self, usec: int) -> None:
        """Learn the kernel clock's drift from a record that came while we waited for it.

        The stamp is the scheduler's clock, which no NTP corrects: after months it may be minutes off
        CLOCK_MONOTONIC, and a fresh record would seem too old to act on. The smallest of the last
        lags tells the drift, for a busy loop can only make a lag larger.
        """
        self._lags.append(self._clock.now().since(self._clock.at_kernel_time(usec)))
        shift = min(self._lags)
        self._shift = shift if abs(shift) >= _SHIFT_FROM else timedelta()


def _neighbour(record: RawRecord | Neighbour) -> Neighbour:
    if isinstance(record, Neighbour):
        return record
    return Neighbour(seq=record.seq, usec=record.usec, digest=text_digest(record_text(record.body)))


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
