"""What a scenario is, and how the lab runs them: in order, each timed, none skipped in silence."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from .cases import Berth
from .lab import Lab
from .machine import LabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One sentence of behaviour and the function that shows it. `smoke` ones run on both releases."""

    name: str
    module: str
    run: Callable[[Lab], None]
    smoke: bool


SCENARIOS: list[Scenario] = []


def scenario(name: str, *, smoke: bool = False) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Register a function as a scenario; it raises when the behaviour is not there."""

    def register(run: Callable[[Lab], None]) -> Callable[[Lab], None]:
        SCENARIOS.append(Scenario(name=name, module=run.__module__.rsplit(".", 1)[-1], run=run, smoke=smoke))
        return run

    return register


def due(berth: Berth, *, only: str = "") -> list[Scenario]:
    """Return what a machine plays, in order: with `only`, what holds these words, and what installs and removes."""
    wanted = [one for name in berth.modules for one in SCENARIOS if one.module == name]
    return [
        one
        for one in wanted
        if (one.smoke or not berth.smoke) and (not only or only in one.name or one.smoke or one.module == "start")
    ]


def play(lab: Lab, berth: Berth, *, only: str = "") -> tuple[int, list[str]]:
    """Run a machine's scenarios; return how many passed and which failed."""
    passed, failed = 0, []
    for one in due(berth, only=only):
        if _passes(one, lab, berth.name):
            passed += 1
        else:
            failed.append(f"{berth.name}: {one.name}")
    return passed, failed


def _passes(one: Scenario, lab: Lab, name: str) -> bool:
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
            print(f"{word} {time.monotonic() - began:6.1f} s  {name}: {one.name}", flush=True)
            traceback.print_exc()
            print(lab.autopsy(), flush=True)
            if not again:
                return False
        else:
            print(f"passed {time.monotonic() - began:6.1f} s  {name}: {one.name}", flush=True)
            return True
    return False
