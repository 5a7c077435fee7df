"""The host's clocks. Nothing outside `host` reads a clock, so that tests can own the time."""

from __future__ import annotations

import asyncio
import ctypes
import time
from datetime import UTC, datetime, timedelta

from ..domain.model import Instant
from .boot import boot_id
from .paths import Paths

# adjtimex(2): the kernel sets STA_UNSYNC in `status` while nobody steers the clock.
_STA_UNSYNC = 0x0040
_TIME_ERROR = 5
# timesyncd(8) touches it whenever it has set the clock; it lies in /run, so it is of this boot.
_TIMESYNC_MARK = "/run/systemd/timesync/synchronized"
_SYNC_CHECK_NS = 1_000_000_000


def wall_clock() -> datetime:
    """Return the wall clock, for what has no boot to belong to."""
    return datetime.fromtimestamp(time.time_ns() // 1000 / 1_000_000, UTC)


def monotonic_usec() -> int:
    """Return CLOCK_MONOTONIC in microseconds, the clock of systemd's own stamps."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is read; the pad covers the rest of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("pad", ctypes.c_char * 256),
    )


class SystemClock:
    """The real clocks of this boot; implements `site.Clock`.

    Raises OSError or ValueError when the boot id cannot be read.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._boot_id = boot_id(paths)
        self._adjtimex = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
        self._synced = False
        self._sync_checked = -_SYNC_CHECK_NS

    def now(self) -> Instant:
        """Return this moment; `synced` is looked up at most once a second."""
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if boottime - self._sync_checked >= _SYNC_CHECK_NS:
            self._sync_checked = boottime
            self._synced = self._ask_synced()
        return Instant(
            boot_id=self._boot_id,
            boottime=timedelta(microseconds=boottime // 1000),
            utc=wall_clock(),
            synced=self._synced,
        )

    def at_kernel_time(self, usec: int) -> Instant:
        """Return the instant at which CLOCK_MONOTONIC of this boot showed `usec` microseconds.

        A kernel record's stamp is the scheduler's clock, which starts with CLOCK_MONOTONIC and drifts
        from it by some parts per million; `sources.kmsg` measures that drift and corrects it.
        """
        now = self.now()
        monotonic = timedelta(microseconds=monotonic_usec())
        return now.plus(timedelta(microseconds=usec) - monotonic)

    async def sleep(self, duration: timedelta) -> None:
        """Wait on the loop; no time at all for a negative duration."""
        await asyncio.sleep(max(0.0, duration.total_seconds()))

    def _ask_synced(self) -> bool:
        """Ask the kernel, which a sandbox may forbid (`ProtectClock=` does); then only timesyncd's mark tells."""
        timex = _Timex()
        if self._adjtimex is not None:
            state = self._adjtimex(ctypes.byref(timex))
            if state >= 0:
                return bool(state != _TIME_ERROR and not timex.status & _STA_UNSYNC)
        return self._paths.at(_TIMESYNC_MARK).exists()
