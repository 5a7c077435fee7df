"""An action that changes nothing but says when it was called: the end of the way that the bench measures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from bandog import Action, Options, Request, Result, Site, hookimpl


class ActOptions(Options):
    """Where to say it."""

    pipe: str


class BenchAct(Action):
    """Writes the moment of its first statement (CLOCK_MONOTONIC, ns) and the subject to a FIFO.

    It counts as disruptive, so that gates, budget and the commit of the intent stand before it.
    """

    name = "bench-act"
    Options = ActOptions
    disruptive = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._pipe = os.open(self.options.pipe, os.O_WRONLY | os.O_CLOEXEC)

    def run(self, request: Request, site: Site) -> Result:
        """Say when."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.write(self._pipe, f"{now} {request.subject}\n".encode())
        return Result.done("noted")


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(BenchAct)
