"""A quick look at the budgets of DESIGN.md section 12, so that a regression shows before `make bench` is run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"


def test_every_quick_figure_is_within_three_times_its_must() -> None:
    """The machine may be busy with other tests, so a figure that fails gets a second chance."""
    over: list[str] = []
    names = ["smoke"]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, BENCH, "--json", *names], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        over = [line for line in done.stdout.splitlines() if not json.loads(line)["kept"]]
        if not over:
            return
        names = ["smoke", *(json.loads(line)["figure"] for line in over)]
    raise AssertionError("\n".join(over))
