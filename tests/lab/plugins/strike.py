"""A test plugin: an act that leaves a mark for each time it was done, and can take the agent down with it.

`die: before` kills the agent as the first statement of `run`, `die: after` right after the act;
`slow` keeps the act from returning for so many seconds.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bandog

MARKS = Path("/var/lib/bandog/strikes")


class StrikeWith(bandog.Options):
    """When to die, and how long to take."""

    die: str = "never"
    slow: int = 0


class Strike(bandog.Action):
    """Leaves its request's id in a file, synced to the disk."""

    name = "strike"
    With = StrikeWith

    def run(self, request: bandog.Request, site: bandog.Site) -> bandog.Result:
        """Act as the step says."""
        if request.with_.get("die") == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with MARKS.open("a") as file:
            file.write(f"{request.id}\n")
            file.flush()
            os.fsync(file.fileno())
        if request.with_.get("die") == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(request.with_.get("slow", 0))
        return bandog.Result.done("struck")

    def prove(self, request: bandog.Request, result: bandog.Result, site: bandog.Site) -> bandog.Proof:
        """Proved by the mark, and by nothing else."""
        marks = MARKS.read_text().split() if MARKS.exists() else []
        if request.id in marks:
            return bandog.Proof.proved("the mark is there")
        return bandog.Proof.disproved("there is no mark")


class Bell(bandog.LogDetector):
    """Finds `lab bell N`."""

    name = "bell"
    needles = (b"lab bell",)
    emits = {"lab.bell": {"number": int}}  # noqa: RUF012  (read only)

    def feed(self, record: bandog.Record) -> Iterator[bandog.Finding]:
        """One finding a line."""
        found = re.match(r"lab bell (\d+)", record.text)
        if found:
            yield bandog.Finding.of(
                record,
                kind="lab.bell",
                subject=f"bell:{found[1]}",
                severity=bandog.Severity.ERROR,
                facts={"number": int(found[1])},
            )


@bandog.hookimpl
def register_detectors(register: Any) -> None:
    """Add the bell."""
    register(Bell)


@bandog.hookimpl
def register_actions(register: Any) -> None:
    """Add the strike."""
    register(Strike)
