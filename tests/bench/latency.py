"""From the kernel's stamp to the first statement of the first step, alone and in a flood."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from figure import Measured, percentile
from ground import Acts, Ground, helper, kernel_counts, said
from kernel import Printk, subjects, xid

# Budgets are for faults, and here there are a thousand; everything else is as shipped. The policy
# tells a chat, as any policy does, and its step is disruptive, so that it waits for the disk.
MAIN = """\
mode: enforce
notify: {{oncall: {{urls: "{url}"}}}}
budgets: {{host: 1000000 per 24h}}
plugins: {{bench-act: {{pipe: {pipe}}}}}
"""
POLICY = """\
policy: bench
match: {kind: nvidia.xid, facts: {xid: [94]}}
quiet: 5s
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
    return _measure(small, 100 if small else 1000, rate=0)


def in_flood(small: bool) -> Measured:
    """The same among 50,000 lines a second that nobody wants."""
    return _measure(small, 100 if small else 1000, rate=10_000 if small else 50_000)


def _measure(small: bool, count: int, *, rate: int) -> Measured:
    """On the small scale the median is judged: the tail of a few lines tells how busy the machine is."""
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
            cpu, starved = daemon.cpu() - cpu, daemon.starved() - starved
            more = {
                "p50": f"{percentile(watch.took, 0.5):.1f} ms",
                "p99": f"{percentile(watch.took, 0.99):.1f} ms",
                "worst": f"{max(watch.took):.1f} ms",
                "lines": f"{count:,}",
                "CPU a line": f"{cpu / count * 1000:.1f} ms",
                "waiting for a CPU a line": f"{starved / count * 1000:.1f} ms",
                "lost": f"{kernel_counts(daemon)['lost']}",
            }
            if flood is not None:
                more["flood"] = f"{flood.reached:,.0f} lines/s"
    return Measured(value=percentile(watch.took, 0.5 if small else 0.99), more=more)


def _acts(count: int, watch: Stopwatch, flood: Flood | None) -> None:
    for _ in range(count):
        pause = time.monotonic() + random.uniform(0, 0.02)
        while (left := pause - time.monotonic()) > 0:
            time.sleep(left if flood is None else min(left, flood()))
        watch.once(flood or (lambda: 1.0))
