"""The whole agent as a process that a test may kill: `python -m simhost.runner ROOT CLOCK`.

Everything that must outlive it is below ROOT or behind the socket ROOT/pid1: PID 1, the kernel's
log, the places to tell people.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bandog.daemon import Parts, Settings, main

from .clock import WorldClock
from .pid1 import Pid1Link


def run(root: Path, clock: WorldClock) -> int:
    """Run until SIGTERM, as `bandog run` does."""
    settings = Settings(root=root, etc=root / "etc", state=root / "state", run=root / "run")
    parts = Parts(
        systemd=Pid1Link(root / "pid1"),
        clock=clock,
        open_kmsg=lambda _: os.open(root / "kernel.log", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC),
        policies_dir=root / "policies",
    )
    return main(settings, parts)


if __name__ == "__main__":
    raise SystemExit(run(Path(sys.argv[1]), WorldClock.of_text(sys.argv[2])))
