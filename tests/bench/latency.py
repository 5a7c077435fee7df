"""From the kernel's stamp to the first statement of the first step, alone and in a flood."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from figure import Measured, percentile
from ground import Acts, Ground, helper, kernel_counts, said
from kernel import Printk, subjects, xid

# Budgets are for faults, and here there are hundreds; everything else is as shipped. The policy tells
# a chat, as any policy does, and its step is disruptive, so that it waits for the disk. No incident
# ends meanwhile: forty that end in the same second are nothing that happens to a server.
MAIN = """\
mode: enforce
notify: {{oncall: {{urls: "{url}"}}}}
budgets: {{host: 1000000 per 24h}}
plugins: {{bench-act: {{pipe: {pipe}}}}}
"""
POLICY = """\
policy: bench
match: {kind: nvidia.xid, facts: {xid: [94]}}
quiet: 1h
notify: [oncall]
steps: [{do: bench-act}]
"""
PATIENCE = 30.0


class Stopwatch:
    """Prints wanted lines one after the other and takes the time to each act."""

    def __init__(self, printk: Printk, acts: Acts) -> None:
        self._printk, self._acts = printk, acts
        self._subjects: Iterator[str] = subjects()
        self.took: list[float] = []

    def once(self, meanwhile: Callable[[], float]) -> None:
        """Print a line that is wanted and wait for its act; `meanwhile()` runs while waiting and says
        for how many seconds to wait until it runs again."""
        address = next(self._subjects)
        stamp = self._printk.print(xid(address))
        end = time.monotonic() + PATIENCE
        while True:
            for moment, subject in self._acts.take(meanwhile()):
                if subject == f"gpu:{address}.0":
                    self.took.append(moment / 1e6 - stamp / 1e3)
                    return
            if time.monotonic() > end:
                raise SystemExit(f"no act for {address} within {PATIENCE:g} s")


class Flood:
    """Lines that nobody wants, `rate` a second."""

    def __init__(self, printk: Printk, rate: int) -> None:
        self._printk, self._rate = printk, rate
        self._began = time.monotonic()
        self.printed = 0

    def __call__(self) -> float:
        """Print what is due by now, at most 500 lines; returns how long nothing is due."""
        due = int((time.monotonic() - self._began) * self._rate) - self.printed
        count = min(max(due, 0), 500)
        self._printk.others(count)
        self.printed += count
        return 0.0 if due > 500 else 0.0005

    @property
    def reached(self) -> float:
        """Lines a second that were really printed."""
        return self.printed / (time.monotonic() - self._began)


def alone(small: bool) -> Measured:
    """One line after the other with short pauses between them."""
    return _measure(small, rate=0)


def in_flood(small: bool) -> Measured:
    """The same among 50,000 lines a second that nobody wants."""
    return _measure(small, rate=10_000 if small else 50_000)


class Tally:
    """What came of some runs of the daemon."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.cpu = self.starved = self.flood = 0.0
        self.lost = 0
        self.disk: list[float] = []

    def judged(self, share: float) -> Measured:
        """Return the time that `share` of all lines did not exceed."""
        lines = len(self.took)
        more = {
            "p50": f"{percentile(self.took, 0.5):.1f} ms",
            "p99": f"{percentile(self.took, 0.99):.1f} ms",
            "worst": f"{max(self.took):.1f} ms",
            "lines": f"{lines:,}",
            "CPU a line": f"{self.cpu / lines * 1000:.1f} ms",
            "waiting for a CPU a line": f"{self.starved / lines * 1000:.1f} ms",
            "fsync here, p99": f"{percentile(self.disk, 0.99):.1f} ms",
            "lost": str(self.lost),
        }
        if self.flood:
            more["flood"] = f"{self.flood:,.0f} lines/s"
        return Measured(value=percentile(self.took, share), more=more)


def _measure(small: bool, *, rate: int) -> Measured:
    """On the small scale the median is judged: the tail of a few lines tells how busy the machine is."""
    tally = Tally()
    for _ in range(1 if small else 4):
        _one_daemon(small, rate, tally)
    return tally.judged(0.5 if small else 0.99)


def _one_daemon(small: bool, rate: int, tally: Tally) -> None:
    count = 100 if small else 260
    with Ground() as ground, helper("receivers") as receivers, Printk() as printk:
        ground.configure(MAIN.format(url=said(receivers)["chat"], pipe=ground.pipe), bench=POLICY)
        acts = Acts(ground)
        with ground.daemon(printk.reader) as daemon:
            watch = Stopwatch(printk, acts)
            flood = Flood(printk, rate) if rate else None
            _acts(5, watch, flood)
            watch.took.clear()
            cpu, starved = daemon.cpu(), daemon.starved()
            _acts(count, watch, flood)
            tally.took += watch.took
            tally.cpu += daemon.cpu() - cpu
            tally.starved += daemon.starved() - starved
            tally.flood = flood.reached if flood is not None else 0.0
            tally.lost += kernel_counts(daemon)["lost"]
            tally.disk += fsyncs(ground.root / "fsync", 20 if small else 100)
        acts.close()


def _acts(count: int, watch: Stopwatch, flood: Flood | None) -> None:
    for _ in range(count):
        pause = time.monotonic() + random.uniform(0, 0.02)
        while (left := pause - time.monotonic()) > 0:
            time.sleep(left if flood is None else min(left, flood()))
        watch.once(flood or (lambda: 1.0))


def fsyncs(file: Path, count: int) -> list[float]:
    """Return how many milliseconds each of some small appends took to be on the disk."""
    took = []
    with file.open("ab", buffering=0) as stream:
        for _ in range(count):
            began = time.monotonic()
            stream.write(b"x" * 4096)
            os.fdatasync(stream.fileno())
            took.append((time.monotonic() - began) * 1000)
    return took
