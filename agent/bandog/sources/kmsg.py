"""Reads the kernel's log from `/dev/kmsg`, on the loop, for as long as the agent lives.

The reader drops what is not the kernel's, counts what it could not read, and goes on after every
error: a deaf watchdog is worse than a missed line (DESIGN sections 4, 6 and 7).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ..domain.model import Instant, Record
from ..host.site import Clock
from .bookmark import Bookmark, Done, Neighbour, text_digest
from .gap import Gap
from .journal import KernelEntry
from .kmsg_device import KmsgDevice, open_kmsg
from .kmsg_record import RawRecord, record_fields, record_text, split_record
from .prefilter import Prefilter

log = logging.getLogger(__name__)

Feed = Callable[[Record], None]

# local_clock() may differ from CLOCK_MONOTONIC by NTP's largest frequency correction, 500 ppm.
_DRIFT_PPM = 500
_SHIFT_FROM = timedelta(milliseconds=100)


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
        self._clock = clock
        self._device = KmsgDevice(
            path,
            on_record=self._take_raw,
            on_drained=self._is_drained,
            on_reopen=self._is_reopened,
            opener=opener,
            read=read,
        )
        self._prefilter = Prefilter(needles)
        self._is_open, self._on_gap = is_open, on_gap
        self._boot_id = clock.now().boot_id
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

    # -- life ---------------------------------------------------------------------------------

    def start(self, feed: Feed) -> None:
        """Open the log and deliver records to `feed` from the loop's next turn on; never raises."""
        self._feed = feed
        self._started = self._clock.now()
        self._device.start()

    def stop(self) -> None:
        """Close the log; nothing is delivered any more."""
        self._device.stop()

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
            malformed=self._malformed + self._device.unreadable,
            lost=self._lost,
            overruns=self._device.overruns,
            reopened=self._device.reopened,
            last_seq=self._last_seq,
            problem=self._device.problem,
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

    def late_record(self, gap: Gap, entry: KernelEntry, seq: int | None) -> Record:
        """Return the record that the journal has of a gap, with its own time."""
        return Record(
            text=entry.text,
            at=self.at(entry.usec),
            source=self.name,
            live=gap.live,
            level=entry.level,
            seq=seq,
            usec=entry.usec,
            fields=entry.fields,
        )

    @property
    def shift(self) -> timedelta:
        """By how much CLOCK_MONOTONIC is ahead of the kernel's stamps."""
        return self._shift

    @property
    def wanted_needles(self) -> tuple[bytes, ...] | None:
        """The needles of what is wanted now, None while every record is."""
        return None if self._is_open() else self._prefilter.needles

    def close_gap(self, gap: Gap) -> None:
        """Say that what could be recovered of `gap` has been fed; the bookmark may pass it."""
        self._gaps.pop(gap, None)

    def at(self, usec: int) -> Instant:
        """Return the instant of a kernel stamp, corrected by the drift measured; never later than now."""
        at, now = self._clock.at_kernel_time(usec).plus(self._shift), self._clock.now()
        return at if at.boottime <= now.boottime else now

    # -- reading ------------------------------------------------------------------------------

    def _is_reopened(self) -> None:
        """The log will be read from its oldest record again; what was read before is skipped."""
        self._skip = self._last_seq is not None
        self._newest_skipped = None
        self._woken = False

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
            live=self._is_live(self.at(head.usec)),
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
        lags tells the drift, for a busy loop can only make a lag larger. What NTP cannot have caused is
        no drift: we stood still, and the record is as old as it says.
        """
        now = self._clock.now()
        lag, most = now.since(self._clock.at_kernel_time(usec)), now.boottime * _DRIFT_PPM / 1_000_000
        if abs(lag) > most + _SHIFT_FROM:
            return
        self._lags.append(lag)
        shift = min(self._lags)
        self._shift = shift if abs(shift) >= _SHIFT_FROM else timedelta()


def _neighbour(record: RawRecord | Neighbour) -> Neighbour:
    if isinstance(record, Neighbour):
        return record
    return Neighbour(seq=record.seq, usec=record.usec, digest=text_digest(record_text(record.body)))
