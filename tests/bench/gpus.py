"""What it costs to ask the driver for eight GPUs every 10 s: the agent and the child that asks, in all."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from figure import Measured
from ground import TOP, Ground, family

sys.path.insert(0, str(Path(__file__).parents[1]))

import fakenvml

GPUS = 8
COMM = "bandog-nvml"


def polled(small: bool) -> Measured:
    """CPU over a minute, or over BENCH_SECONDS (600 for ten minutes)."""
    seconds = 25.0 if small else float(os.environ.get("BENCH_SECONDS", "60"))
    with Ground() as ground:
        state = fakenvml.State(ground.root / "gpus", GPUS)
        environment = json.dumps(state.env(fakenvml.build(TOP / ".cache/fakenvml")))
        ground.configure(f"mode: observe\nplugins: {{gpu: {{environment: {environment}}}}}\n")
        with ground.daemon() as daemon:
            pid = daemon.process.pid
            child = _child(pid)
            before, asking, began = daemon.cpu(), _seconds(child), time.monotonic()
            seen = set(family(pid))
            while (passed := time.monotonic() - began) < seconds:
                time.sleep(min(1.0, seconds - passed))
                seen.update(family(pid))
            took = time.monotonic() - began
            asking = (_seconds(child) - asking) / took * 100
            all_of_it = (daemon.cpu() - before) / took * 100 + asking
            cards = len(daemon.status()["gpus"])
            if cards != GPUS:
                raise SystemExit(f"{cards} GPUs were seen")
            more = {
                "of it the child": f"{asking:.3f} %",
                "its PSS": f"{_pss(child):.1f} MiB",
                "children": str(len(seen) - 1),
                "over": f"{took:.0f} s",
            }
            return Measured(value=all_of_it, more=more)


def _child(pid: int) -> int:
    """Return the child that asks the driver, once it has begun."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for one in family(pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{one}/comm").read_text().strip() == COMM:
                    time.sleep(2)  # the first round reads what is read once
                    return one
        time.sleep(0.1)
    raise SystemExit("no child asks the driver")


def _seconds(pid: int) -> float:
    """Return the CPU that the child has used; to the nanosecond, as it is far less than a tick a round."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _pss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
