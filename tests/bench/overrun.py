"""A flood that the kernel's buffer cannot hold: what was in the buffer is found, what was not is counted."""

from __future__ import annotations

import threading
import time

from figure import Measured
from ground import Acts, Ground, helper, kernel_counts, said
from kernel import Ring, subjects, xid
from latency import MAIN, POLICY

LINES = 100_000
BUFFER = 1_600  # records in 128 KiB of printk, beside what the socket itself holds
EVERY = 500  # one line in so many is wanted


def survived(small: bool) -> Measured:
    """Return the share of the wanted lines in the buffer that were acted on, in percent.

    A hundred thousand lines in a second, for the first third of which the daemon gets no CPU.
    """
    with Ground() as ground, helper("receivers") as receivers, Ring(BUFFER) as ring:
        ground.configure(MAIN.format(url=said(receivers)["chat"], pipe=ground.pipe), bench=POLICY)
        acts = Acts(ground)
        with ground.daemon(ring.reader) as daemon:
            starved = threading.Thread(target=daemon.pause, args=(0.35,))
            starved.start()
            wanted, seconds = _flood(ring)
            starved.join()
            while not ring.offer():
                time.sleep(0.001)
            after = "ffff:01:00"
            ring.print(xid(after))
            ring.offer()
            gone = {text for text in ring.overwritten if text.startswith(b"NVRM")}
            there = {address for address in wanted if xid(address) not in gone} | {after}
            seen: set[str] = set()
            end = time.monotonic() + 60
            while not there <= seen and time.monotonic() < end:
                seen |= {subject.removeprefix("gpu:").removesuffix(".0") for _, subject in acts.take(1.0)}
            lost = kernel_counts(daemon)["lost"]
    found = len(there & seen) / len(there) * 100
    counted = lost == len(ring.overwritten)
    more = {
        "wanted and there": f"{len(there)}",
        "overwritten": f"{len(ring.overwritten):,}",
        "counted as lost": f"{lost:,}",
        "lines": f"{LINES:,} in {seconds:.2f} s",
    }
    return Measured(value=found if counted and not seen - there else 0.0, more=more)


def _flood(ring: Ring) -> tuple[list[str], float]:
    """Print all lines within a second, as evenly as a loop can; returns the wanted addresses and the time."""
    wanted = []
    addresses = subjects()
    began = time.monotonic()
    for number in range(0, LINES, EVERY):
        wanted.append(next(addresses))
        ring.print(xid(wanted[-1]))
        ring.others(EVERY - 1)
        ring.offer()
        time.sleep(max(0.0, began + number / LINES - time.monotonic()))
    return wanted, time.monotonic() - began
