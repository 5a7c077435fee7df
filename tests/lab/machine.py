"""A virtual machine of the lab: booted by QEMU without KVM, driven over ssh on a loopback port."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .images import CACHE, Image

# Software emulation on a shared machine is slow, now and then very slow.
BOOT_DEADLINE = 240
COMMAND_DEADLINE = 180
MEMORY_MIB = 1024
HOST_SEEN_FROM_GUEST = "10.0.2.2"


T = TypeVar("T")


class LabError(Exception):
    """The lab itself did not do its part, or a condition was not met in time."""


def wait_until(what: str, seconds: float, condition: Callable[[], T | None], every: float = 0.5) -> T:
    """Return the first true value of `condition`, asked every `every` seconds; LabError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise LabError(f"not within {seconds:g} s: {what}")
        time.sleep(every)


class Machine:
    """One running machine. Its disk is an overlay of the image and lasts as long as this object."""

    def __init__(self, image: Image, *, name: str = "", extra: tuple[str, ...] = ()) -> None:
        self.image = image
        self._place = Path(tempfile.mkdtemp(prefix="bandog-lab-"))
        self._disk = self._place / "disk.qcow2"
        self.console = CACHE / f"console-{name or image.release}.log"
        self._extra = extra
        self._port = _free_port()
        self._qemu: subprocess.Popen[bytes] | None = None
        self.boots = 0
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk), str(self._disk)],
            check=True,
        )

    def boot(self) -> float:
        """Start the machine and return the seconds until it has finished booting."""
        began = time.monotonic()
        self._qemu = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL)
        self._await_boot()
        return time.monotonic() - began

    def _command(self) -> list[str]:
        append = "root=/dev/vda rw console=ttyS0 loglevel=1 net.ifnames=0 systemd.show_status=false"
        return [
            "qemu-system-x86_64",
            *("-accel", "tcg,thread=multi", "-smp", "2", "-m", str(MEMORY_MIB)),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-serial", f"file:{self.console}"),
            *("-qmp", f"unix:{self._place}/qmp,server=on,wait=off"),
            *("-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd), "-append", append),
            *("-drive", f"file={self._disk},if=virtio,format=qcow2,cache=unsafe"),
            *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self._port}-:22"),
            *("-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"),
            *self._extra,
        ]

    def _await_boot(self) -> None:
        def up() -> bool:
            if self._qemu is None or self._qemu.poll() is not None:
                raise LabError(f"QEMU ended; console in {self.console}")
            answer = self._ssh("systemctl is-system-running --wait", deadline=BOOT_DEADLINE)
            return answer.stdout.strip() in ("running", "degraded")

        wait_until(f"boot of {self.image.release}; console in {self.console}", BOOT_DEADLINE, up, every=1)
        self.boots += 1

    def _ssh(self, command: str, *, deadline: float, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        argv = [
            *("ssh", "-q", "-i", str(self.image.key), "-p", str(self._port)),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            *("-o", "BatchMode=yes", "-o", "ConnectTimeout=5"),
            *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=12"),
            *("-o", "ControlMaster=auto", "-o", "ControlPersist=600"),
            *("-o", f"ControlPath={self._place}/ssh", "root@127.0.0.1", command),
        ]
        # The connection that ControlPersist keeps in the background holds our pipes: read from files.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, stdout=out, stderr=err
            )
            try:
                if process.stdin is not None:
                    process.stdin.write(stdin or b"")
                    process.stdin.close()
                code = process.wait(timeout=deadline)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                process.kill()
                code = process.wait() or 255
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                argv, code, out.read().decode(errors="replace"), err.read().decode(errors="replace")
            )

    def ssh(self, command: str, *, check: bool = True, deadline: float = COMMAND_DEADLINE) -> str:
        """Run a shell command as root and return its standard output; LabError if it fails and `check`."""
        done = self._ssh(command, deadline=deadline)
        if check and done.returncode != 0:
            raise LabError(f"{command!r} ended {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def status(self, command: str) -> int:
        """Run a shell command as root and return its exit status."""
        return self._ssh(command, deadline=COMMAND_DEADLINE).returncode

    def put(self, content: str | bytes | Path, path: str, *, mode: str = "644") -> None:
        """Write a local file, or text, to `path` in the machine, its folder included."""
        if isinstance(content, Path):
            content = content.read_bytes()
        data = content.encode() if isinstance(content, str) else content
        target = shlex.quote(path)
        command = f"install -D -m {mode} /dev/stdin {target}"
        done = self._ssh(command, deadline=COMMAND_DEADLINE, stdin=data)
        if done.returncode != 0:
            raise LabError(f"could not write {path}: {done.stderr}")

    def kernel_line(self, *lines: str) -> None:
        """Let the kernel print these lines, facility 0."""
        self.put_stdin("cat > /proc/bandog-lab", "".join(f"{line}\n" for line in lines))

    def put_stdin(self, command: str, text: str) -> str:
        """Run a shell command with `text` on its standard input and return its output."""
        done = self._ssh(command, deadline=COMMAND_DEADLINE, stdin=text.encode())
        if done.returncode != 0:
            raise LabError(f"{command!r} ended {done.returncode}: {done.stderr}")
        return done.stdout

    def journal(self, unit: str = "bandog", *options: str) -> str:
        """Return the unit's journal of this boot; other `journalctl` options replace that."""
        which = " ".join(options) or f"-b -u {unit}"
        return self.ssh(f"journalctl --no-pager -o short-monotonic {which}")

    def boot_id(self) -> str:
        """Return the id of the running boot."""
        return self.ssh("cat /proc/sys/kernel/random/boot_id").strip()

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Ask QEMU's monitor and return its answer; LabError if it refuses."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(30)
            link.connect(str(self._place / "qmp"))
            stream = link.makefile("rw")
            stream.readline()
            for one in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(one) + "\n")
                stream.flush()
                while True:
                    answer = json.loads(stream.readline())
                    if "error" in answer:
                        raise LabError(f"QEMU refused {command}: {answer['error']}")
                    if "return" in answer:
                        break
            return answer["return"]

    def power_cycle(self, *, clock: str | None = None) -> float:
        """Cut the power, keep the disk, and return the seconds until it has booted again.

        What was not synced is lost, as on a real machine: the guest's memory goes, QEMU's stays.
        With `clock` the battery clock says that date from then on, as one with an empty battery does;
        `utc` is the right time.
        """
        began = time.monotonic()
        self._drop_connection()
        if clock is None:
            self.qmp("system_reset")
        else:
            assert self._qemu is not None
            self.qmp("quit")
            self._qemu.wait(timeout=30)
            self._qemu = subprocess.Popen([*self._command(), "-rtc", f"base={clock}"], stdin=subprocess.DEVNULL)
        self._await_boot()
        return time.monotonic() - began

    def set_clock(self) -> None:
        """Set the running machine's clock right, until its next boot."""
        self.ssh(f"date -u -s @{time.time():.0f}")

    def await_reboot(self, before: str) -> None:
        """Wait until the machine runs under another boot id than `before`."""
        self._drop_connection()

        def rebooted() -> bool:
            answer = self._ssh("cat /proc/sys/kernel/random/boot_id", deadline=60).stdout.strip()
            return bool(answer) and answer != before

        wait_until("another boot id", BOOT_DEADLINE, rebooted, every=2)
        self._await_boot()

    def _drop_connection(self) -> None:
        subprocess.run(
            ["ssh", "-q", "-o", f"ControlPath={self._place}/ssh", "-O", "exit", "root@127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )

    def close(self) -> None:
        """End the machine and remove its disk."""
        self._drop_connection()
        if self._qemu is not None and self._qemu.poll() is None:
            self._qemu.terminate()
            try:
                self._qemu.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._qemu.kill()
                self._qemu.wait()
        shutil.rmtree(self._place, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
