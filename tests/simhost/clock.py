"""The clock of a simulated host: it can run fast, belong to any boot and show any year.

It is a straight line over the machine's own boot clock, so that every process that is told the same
numbers sees the same time, and a killed agent finds it where it should be.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from bandog import Instant

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldClock:
    """Implements the agent's `Clock`. `began` is the machine's boot clock at the start of this boot."""

    boot_id: str
    began: float
    utc: float
    rate: float = 1.0
    synced: bool = True

    @classmethod
    def boot(cls, *, utc: datetime, rate: float = 1.0, up: timedelta = timedelta(hours=1), synced: bool = True) -> Self:
        """Begin a boot that is `up` old now; `utc` is what its wall clock shows now."""
        real = time.clock_gettime(time.CLOCK_BOOTTIME)
        return cls(
            boot_id=uuid.uuid4().hex,
            began=real - up.total_seconds() / rate,
            utc=(utc - up).timestamp(),
            rate=rate,
            synced=synced,
        )

    def seconds(self) -> float:
        """Return how old this boot is."""
        return (time.clock_gettime(time.CLOCK_BOOTTIME) - self.began) * self.rate

    def now(self) -> Instant:
        """Return this moment."""
        up = timedelta(seconds=self.seconds())
        utc = datetime.fromtimestamp(self.utc, UTC) + up
        return Instant(boot_id=self.boot_id, boottime=up, utc=utc, synced=self.synced)

    def usec(self) -> int:
        """Return the kernel's stamp of a line printed now."""
        return round(self.seconds() * 1_000_000)

    def at_kernel_time(self, usec: int) -> Instant:
        """Return the instant of a kernel stamp of this boot."""
        now = self.now()
        return now.plus(usec * MICROSECOND - now.boottime)

    async def sleep(self, duration: timedelta) -> None:
        """Wait on the loop, by this clock."""
        await asyncio.sleep(max(0.0, duration.total_seconds() / self.rate))

    def to_text(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        return cls(**json.loads(text))
