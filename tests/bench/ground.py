"""A host to measure on: a folder with real /proc in it, a kernel log that is ours, and the daemon as a process.

It lies in the checkout, so that the store is on a real disk. Its groups, devices and package locks
are ours, so that nothing of the machine that runs the bench gets in the way (an apt under way
would make each act wait).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
TOP = HERE.parents[1]
BANDOG = Path(sys.executable).with_name("bandog")
TICKS = os.sysconf("SC_CLK_TCK")
UNIT = "vllm-bench.service"

SERVICE = f"""\
service: bench
unit: {UNIT}
gpus: all
"""


class Ground:
    """The folder of one simulated host; removed at the end of the block."""

    def __enter__(self) -> Self:
        cache = TOP / ".cache"
        cache.mkdir(exist_ok=True)
        self.root = Path(tempfile.mkdtemp(prefix="bench-", dir=cache))
        # A socket's address has 107 bytes at most (unix(7)), which a deep checkout would exceed.
        self.run = Path(tempfile.mkdtemp(prefix="bandog-bench-"))
        self.etc = self.root / "etc/bandog"
        self.group = self.root / "sys/fs/cgroup/system.slice" / UNIT
        for folder in (self.etc / "services.d", self.etc / "policies.d", self.group, self.root / "var/lib/bandog"):
            folder.mkdir(parents=True)
        for name in ("dev", "var/lib/dpkg", "run/dbus"):
            (self.root / name).mkdir(parents=True)
        (self.root / "proc").symlink_to("/proc")
        (self.root / "sys/fs/cgroup/cgroup.controllers").touch()
        (self.group / "cgroup.procs").touch()
        (self.root / "dev/kmsg").symlink_to("/dev/kmsg")
        for number in range(8):
            (self.root / f"dev/nvidia{number}").touch()
        for lock in ("lock", "lock-frontend"):
            (self.root / "var/lib/dpkg" / lock).touch()
        (self.etc / "services.d/bench.yaml").write_text(SERVICE)
        self.configure("mode: observe\n")
        self.pipe = self.run / "acts"
        os.mkfifo(self.pipe)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.run, ignore_errors=True)

    def configure(self, main: str, **policies: str) -> None:
        """Write the main file, and policies that come before the shipped ones.

        `bench-act` is loaded only where the main file has options for it.
        """
        self.plugins = HERE / "plugin" if "bench-act" in main else None
        (self.etc / "bandog.yaml").write_text(main)
        (self.etc / "bandog.yaml").chmod(0o600)
        for name, text in policies.items():
            (self.etc / "policies.d" / f"010-{name}.yaml").write_text(text)

    def daemon(self, kernel: socket.socket | None = None) -> Running:
        """Start the daemon; with `kernel` it reads records from that socket, else from /dev/kmsg."""
        return Running(self, kernel)


class Running:
    """The daemon as a process of its own, ready once the block is entered."""

    def __init__(self, ground: Ground, kernel: socket.socket | None) -> None:
        self._ground, self._kernel = ground, kernel
        self.ready_after = 0.0

    def __enter__(self) -> Self:
        ground, kernel = self._ground, self._kernel
        address = ground.run / "notify"
        address.unlink(missing_ok=True)
        argv: list[str | Path] = [BANDOG, "run", "--root", ground.root, "--runtime", ground.run]
        if kernel is not None:
            argv = [sys.executable, HERE / "on_socket.py", str(kernel.fileno()), ground.root, ground.run]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(address))
            notify.settimeout(60)
            began = time.monotonic()
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, "NOTIFY_SOCKET": str(address), "PYTHONPATH": str(ground.plugins or "")},
                pass_fds=() if kernel is None else (kernel.fileno(),),
                stderr=(ground.root / "log").open("ab"),
            )
            try:
                while b"READY=1" not in notify.recv(4096):
                    continue
            except TimeoutError:
                self.__exit__()
                raise SystemExit(f"the daemon does not start:\n{(ground.root / 'log').read_text()}") from None
            self.ready_after = time.monotonic() - began
        wrong = [one for one in self.status()["problems"] if ": warning: " not in one]
        if wrong:
            self.__exit__()
            raise SystemExit("\n".join(wrong))
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu(self) -> float:
        """Return the seconds of CPU that the daemon and its ended children have used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / TICKS

    def starved(self) -> float:
        """Return the seconds for which the daemon's threads were ready and had to wait for a CPU."""
        waited = 0
        for one in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                waited += int(one.read_text().split()[1])
        return waited / 1e9

    def memory(self) -> tuple[float, float]:
        """Return PSS and RSS of the daemon and all its children, in MiB."""
        sums = {"Pss:": 0, "Rss:": 0}
        for pid in family(self.process.pid):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    name, _, value = line.partition(" ")
                    if name in sums:
                        sums[name] += int(value.split()[0])
        if not sums["Pss:"]:
            raise SystemExit(f"/proc/{self.process.pid}/smaps_rollup tells nothing")
        return sums["Pss:"] / 1024, sums["Rss:"] / 1024

    def status(self) -> dict[str, Any]:
        """Ask the daemon for its status over the control socket."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(20)
            control.connect(str(self._ground.run / "control"))
            control.sendall(b'{"do": "status"}\n')
            answer = json.loads(control.makefile().readline())
        return dict(answer["answer"])

    def pause(self, seconds: float) -> None:
        """Take the CPU from the daemon for a while, as a starved host does."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.process.send_signal(signal.SIGCONT)


def kernel_counts(daemon: Running) -> Mapping[str, int]:
    """Return what the daemon counts of its kernel log: read, wanted, lost and so on."""
    return dict(next(one["counts"] for one in daemon.status()["sources"] if one["name"] == "kmsg"))


def family(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


class Acts:
    """The reading end of what `bench-act` says. Open it before the daemon starts."""

    def __init__(self, ground: Ground) -> None:
        self._fd = os.open(ground.pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._held = b""

    def take(self, within: float = 0) -> list[tuple[int, str]]:
        """Return the acts so far, (ns, subject) each; waits `within` seconds for one."""
        if not select.select([self._fd], [], [], within)[0]:
            return []
        *lines, self._held = (self._held + os.read(self._fd, 65536)).split(b"\n")
        return [(int(line.split()[0]), line.split()[1].decode()) for line in lines]

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


@contextlib.contextmanager
def helper(name: str, *arguments: str | Path, quiet: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this folder beside the daemon; it ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, HERE / f"{name}.py", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(process: subprocess.Popen[str]) -> Mapping[str, Any]:
    """Return the first line of a helper, a JSON object."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a helper does not start: {process.args!r}")
    return dict(json.loads(line))


def cpu_of(argv: Sequence[str | Path], *, codes: Sequence[int] = (0,)) -> tuple[float, float]:
    """Run a program to its end; return the seconds of wall clock and of CPU that it took."""
    began = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    words = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode not in codes:
        raise SystemExit(f"{argv}: exit code {process.returncode}: {words.decode(errors='replace')}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime
