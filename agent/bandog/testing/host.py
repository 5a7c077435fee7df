"""A host of files below a directory of the test."""

from __future__ import annotations

import itertools
from pathlib import Path

from ..host.paths import Paths
from .clock import FakeClock


class FakeHost:
    """A host below a directory of the test; what `unsupported` and readers of /proc look at.

    The trees exist, /proc knows boot id, host name and uptime; `task` and `cgroup` add processes.
    """

    def __init__(self, root: Path, *, clock: FakeClock | None = None) -> None:
        self.paths = Paths(root=root)
        self.clock = clock or FakeClock()
        for tree in (self.paths.dev, self.paths.sys, self.paths.etc, self.paths.state, self.paths.run):
            tree.mkdir(parents=True, exist_ok=True)
        self.boot()

    def boot(self) -> None:
        """Write what /proc says of the clock's present boot."""
        hexes = self.clock.now().boot_id
        dashed = "-".join((hexes[:8], hexes[8:12], hexes[12:16], hexes[16:20], hexes[20:]))
        self.write("/proc/sys/kernel/random/boot_id", dashed + "\n")
        self.write("/proc/sys/kernel/hostname", "gpu07\n")
        self.write("/proc/sys/kernel/osrelease", "6.12.0-fake\n")
        self.write("/proc/uptime", f"{self.clock.now().boottime.total_seconds():.2f} 0.00\n")

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file at the absolute `path` of the fake host, directories included; return where it lies."""
        place = self.paths.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
        return place

    def task(
        self,
        pid: int,
        comm: str,
        state: str = "S",
        *,
        tid: int | None = None,
        ppid: int = 1,
        start: int = 1000,
        switches: int = 100,
        cpu_ticks: int = 10,
        wchan: str = "0",
        stack: str = "",
        cgroup: str = "/",
    ) -> None:
        """Write one task's stat, status, comm, wchan, stack and cgroup; `tid` other than `pid` is a thread."""
        number = pid if tid is None else tid
        fields = ["0"] * 49
        fields[0], fields[1], fields[11], fields[19] = state, str(ppid), str(cpu_ticks), str(start)
        files = {
            "stat": f"{number} ({comm}) {' '.join(fields)}\n",
            "status": f"Name:\t{comm}\nState:\t{state}\nTgid:\t{pid}\nPid:\t{number}\n"
            f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n",
            "comm": comm + "\n",
            "wchan": wchan,
            "stack": stack,
            "cgroup": f"0::{cgroup}\n",
        }
        places = [f"/proc/{pid}/task/{number}"] + ([f"/proc/{pid}"] if number == pid else [])
        for place, (name, text) in itertools.product(places, files.items()):
            self.write(f"{place}/{name}", text)

    def cgroup(self, path: str, *pids: int) -> None:
        """Write a cgroup-v2 group with these processes; `path` as systemd's ControlGroup spells it."""
        self.write(f"/sys/fs/cgroup{path}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))
