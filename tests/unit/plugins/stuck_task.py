"""A real task in D state, without root: the parent in `posix_spawn` of a child that opens a FIFO.

The child shares the parent's memory until it execs and waits for a writer of the FIFO; meanwhile the
parent waits in the kernel (vfork), in D. A write to the FIFO lets both go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""


@dataclass
class StuckTask:
    """The process that waits in D; `free` ends it whatever happened."""

    process: subprocess.Popen[bytes]
    fifo: Path
    comm: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def subject(self) -> str:
        return f"task:{self.comm}"

    @property
    def state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text("utf-8", "replace")
        return stat.rpartition(") ")[2][:1]

    @classmethod
    def start(cls, fifo: Path) -> StuckTask:
        """Start it and wait until it is in D state."""
        comm = f"st:{os.getpid()} (x)"[:15]
        os.mkfifo(fifo)
        process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(fifo), comm])
        one = cls(process, fifo, comm)
        deadline = time.monotonic() + 20
        while one.state != "D":
            if time.monotonic() > deadline or process.poll() is not None:
                one.free()
                raise RuntimeError("posix_spawn does not wait in D state here")
            time.sleep(0.01)
        return one

    def free(self) -> None:
        """Open the FIFO for writing, so that child and parent go on, and wait for them."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):  # ENXIO until the child has opened its end
                os.close(os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.01)
        self.process.wait(timeout=20)
