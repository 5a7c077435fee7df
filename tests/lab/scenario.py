"""What a scenario is, and how the lab runs them: in order, each timed, none skipped in silence."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from .lab import Lab
from .machine import LabError

MAIN_RELEASE = "trixie"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One sentence of behaviour and the function that shows it. `smoke` ones run on both releases."""

    name: str
    run: Callable[[Lab], None]
    smoke: bool


SCENARIOS: list[Scenario] = []


def scenario(name: str, *, smoke: bool = False) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Register a function as a scenario; it raises when the behaviour is not there."""

    def register(run: Callable[[Lab], None]) -> Callable[[Lab], None]:
        SCENARIOS.append(Scenario(name=name, run=run, smoke=smoke))
        return run

    return register


def play(lab: Lab, *, only: str = "") -> tuple[int, list[str]]:
    """Run the scenarios that are due on this machine; return how many passed and which failed."""
    passed, failed = 0, []
    release = lab.machine.image.release
    for one in SCENARIOS:
        if (release != MAIN_RELEASE and not one.smoke) or (only and only not in one.name and not one.smoke):
            continue
        if _passes(one, lab, release):
            passed += 1
        else:
            failed.append(f"{release}: {one.name}")
    return passed, failed


def _passes(one: Scenario, lab: Lab, release: str) -> bool:
    """Run a scenario; a wait that ran out is tried once more, and said.

    An emulated machine on a busy host is up to ten times slower than on an idle one. What is wrong, not late, fails
    at once.
    """
    for more in (1, 0):
        began = time.monotonic()
        try:
            one.run(lab)
        except Exception as error:  # whatever it was, the other scenarios still run
            again = more and isinstance(error, LabError)
            word = "again " if again else "FAILED"
            print(f"{word} {time.monotonic() - began:6.1f} s  {release}: {one.name}", flush=True)
            traceback.print_exc()
            print(lab.autopsy(), flush=True)
            if not again:
                return False
        else:
            print(f"passed {time.monotonic() - began:6.1f} s  {release}: {one.name}", flush=True)
            return True
    return False
