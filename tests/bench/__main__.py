"""`make bench`: what the budgets of DESIGN.md section 12 come to on this machine.

Usage: python tests/bench [--json] [--runs N] [NAME …]. `smoke` takes a quick subset, or the figures
named beside it, once and on a small scale, with limits three times as wide. Exit code 1 if a must is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import footprint
import gpus
import latency
import overrun
import startup
import throughput
from figure import Figure, Measured

FIGURES = (  # name, what, unit, must, goal, how it is measured
    Figure("latency", "kernel stamp → first step, p99", "ms", 20, 10, latency.alone),
    Figure("flood", "the same in a flood, p99", "ms", 200, 100, latency.in_flood),
    Figure("explain", "explain, lines nobody wants", "/s", 300_000, 1_000_000, throughput.explain, more_is_better=True),
    Figure("replay", "replay, lines nobody wants", "/s", 300_000, 1_000_000, throughput.replay, more_is_better=True),
    Figure("start", "start to READY", "s", 1.5, 1, startup.ready),
    Figure("memory", "PSS of all processes", "MiB", 84, 64, footprint.memory),
    Figure("idle", "CPU while nothing happens", "%", 0.5, 0.2, footprint.idle),
    Figure("gpus", "CPU, 8 GPUs asked every 10 s", "%", 0.2, 0.1, gpus.polled),
    Figure("overrun", "wanted lines in the buffer found", "%", 100, 100, overrun.survived, more_is_better=True),
)
SMOKE = ("latency", "explain", "replay", "start", "memory")
SLACK = 3


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests/bench", description=__doc__)
    names = [one.name for one in FIGURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)}, or smoke; without, all but it")
    parser.add_argument("--json", action="store_true", help="JSON Lines instead of a table")
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {*names, "smoke"}
    if unknown:
        parser.error(f"no figure is called {', '.join(sorted(unknown))}; there are {', '.join(names)} and smoke")
    small = "smoke" in options.names
    wanted = (set(options.names) - {"smoke"}) or set(SMOKE if small else names)
    if not options.json:
        print(f"{'figure':<34} {'must':>12} {'goal':>12}   measured", flush=True)
    kept = True
    for figure in FIGURES:
        if figure.name in wanted:
            kept &= _take(figure, small=small, runs=1 if small else options.runs, as_json=options.json)
    return 0 if kept else 1


def _take(figure: Figure, *, small: bool, runs: int, as_json: bool) -> bool:
    """Measure one figure, print it, and return whether every run keeps its must."""
    slack = SLACK if small else 1
    taken: list[tuple[Measured, float]] = []
    for _ in range(runs):
        measured = figure.measure(small)
        taken.append((measured, os.getloadavg()[0]))
    kept = all(figure.keeps(one.value, slack) for one, _ in taken)
    print(json.dumps(_document(figure, taken, kept)) if as_json else _row(figure, taken, kept), flush=True)
    return kept


def _row(figure: Figure, taken: Sequence[tuple[Measured, float]], kept: bool) -> str:
    sign = "≥" if figure.more_is_better else "≤"
    values = "  ".join(f"{_number(one.value):>10}" for one, _ in taken)
    word = "ok, goal reached" if all(figure.reaches_goal(one.value) for one, _ in taken) else "ok" if kept else "OVER"
    must, goal = (f"{sign} {_number(limit)} {figure.unit}" for limit in (figure.must, figure.goal))
    lines = [f"{figure.what:<34} {must:>12} {goal:>12} {values} {figure.unit}  {word}"]
    for one, load in taken:
        more = ", ".join(f"{name} {value}" for name, value in one.more.items())
        lines.append(f"    {more}, load {load:.1f}")
    return "\n".join(lines)


def _document(figure: Figure, taken: Sequence[tuple[Measured, float]], kept: bool) -> dict[str, Any]:
    return {
        "figure": figure.name,
        "unit": figure.unit,
        "must": figure.must,
        "goal": figure.goal,
        "kept": kept,
        "runs": [{"value": one.value, "load": load, **one.more} for one, load in taken],
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
