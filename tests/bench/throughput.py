"""How many lines that nobody wants `explain` and `replay` read in a second, measured on the whole program."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from figure import Measured
from ground import BANDOG, Ground, cpu_of
from kernel import OTHERS


def explain(small: bool) -> Measured:
    """`bandog explain FILE`, a kernel log as `dmesg` prints it."""
    with Ground() as ground:
        return _rate(ground, ["explain", "--config", ground.etc], 400_000 if small else 2_000_000)


def replay(small: bool) -> Measured:
    """`bandog replay FILE`, the same log through engine and budgets."""
    with Ground() as ground:
        return _rate(ground, ["replay", "--config", ground.etc], 400_000 if small else 2_000_000)


def _rate(ground: Ground, command: Sequence[str | Path], lines: int) -> Measured:
    """Judge the CPU of the whole program, its start included: that is what one core can do."""
    log, empty = ground.root / "log.txt", ground.root / "empty.txt"
    log.write_bytes(kernel_log(lines))
    empty.touch()
    _, start = cpu_of([BANDOG, *command, empty])
    wall, cpu = cpu_of([BANDOG, *command, log])
    more = {
        "net of the start": f"{lines / max(cpu - start, 0.001):,.0f}/s",
        "by the wall clock": f"{lines / wall:,.0f}/s",
        "lines": f"{lines:,}",
    }
    return Measured(value=lines / cpu, more=more)


@functools.lru_cache(maxsize=1)
def kernel_log(lines: int) -> bytes:
    """Return a log of so many lines, a millisecond apart."""
    texts = random.Random(7).choices(OTHERS, k=997)
    stamped = (
        b"[%5d.%03d000] %s\n" % (number // 1000, number % 1000, text)
        for number, text in zip(range(lines), itertools.cycle(texts), strict=False)
    )
    return b"".join(stamped)
