"""A real hung task: the running kernel reports it, the detector reads the report, the scan sees it too.

A loop ext4 is frozen and a process named like a vLLM worker writes to it. Root only; every setting
is put back and the file system thawed whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bandog import Finding, Record
from bandog.host.clock import SystemClock
from bandog.host.paths import Paths
from bandog.sources.kmsg_record import record_text, split_record
from bandog.testing import FakeHost, FakeSite
from bandog_plugins.detectors._hung_scan import HungTaskScan, ScanOptions
from bandog_plugins.detectors.hung_task import HungTask

SYSCTL = Path("/proc/sys/kernel")
COMM = "VLLM::Worker_TP"
WRITER = f"""
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"{COMM}0", 0, 0, 0)
print("ready", flush=True)
sys.stdin.readline()
open(sys.argv[1], "w").write("x")
"""
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel."""
TIMEOUT = 2
"""Seconds until khungtaskd reports; it looks that often too, so a report comes within twice that."""


@contextlib.contextmanager
def setting(name: str, value: int) -> Iterator[None]:
    """Set a sysctl for a while."""
    file = SYSCTL / name
    old = file.read_text()
    file.write_text(str(value))
    try:
        yield
    finally:
        file.write_text(old)


@contextlib.contextmanager
def frozen_disk(folder: Path) -> Iterator[Path]:
    """Mount a small ext4 of its own and freeze it; thawed and unmounted at the end."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        made = subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not installed")
    if made.returncode != 0:
        pytest.skip(f"no loop device can be mounted here: {made.stderr.strip()}")
    try:
        subprocess.run(["fsfreeze", "-f", str(mount)], check=True)
        yield mount
    finally:
        subprocess.run(["fsfreeze", "-u", str(mount)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(mount)], check=True)


def thaw(mount: Path) -> None:
    subprocess.run(["fsfreeze", "-u", str(mount)], check=True)


@contextlib.contextmanager
def kernel_log() -> Iterator[int]:
    """Open the kernel's log behind its last record."""
    try:
        file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read: {error.strerror}")
    try:
        os.lseek(file, 0, os.SEEK_END)
        yield file
    finally:
        os.close(file)


def records(file: int, clock: SystemClock) -> Iterator[Record]:
    """Yield what the log holds now."""
    while True:
        try:
            raw = split_record(os.read(file, 8192))
        except BlockingIOError:
            return
        if raw is not None:
            at = clock.at_kernel_time(raw.usec)
            yield Record(text=record_text(raw.body), at=at, source="kmsg", kernel=raw.kernel, live=True, seq=raw.seq)


def reported(file: int, pid: int, *, seconds: float) -> Finding:
    """Feed the detector from the log until it finds `pid`."""
    clock, detector = SystemClock(Paths()), HungTask()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        select.select([file], [], [], 0.3)
        found = [one for record in records(file, clock) for one in detector.feed(record)]
        found += detector.flush(clock.now()) if detector.open else ()
        for one in found:
            if one.facts.get("pid") == pid:
                return one
    raise AssertionError("the kernel reported nothing in time")


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that writes to a frozen file system."""
    if os.geteuid() != 0:
        pytest.skip("freezing a file system and setting kernel.hung_task_* need root")
    if Path("/proc/self/ns/pid").stat().st_ino != FIRST_PID_NAMESPACE:
        pytest.skip("in a PID namespace of its own (a container), the kernel names other pids than ours")
    if not (SYSCTL / "hung_task_timeout_secs").exists():
        pytest.skip("this kernel has no hung-task detection (CONFIG_DETECT_HUNG_TASK)")
    with frozen_disk(tmp_path) as mount:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(mount / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process, mount
        finally:
            subprocess.run(["fsfreeze", "-u", str(mount)], check=False, capture_output=True)
            process.stdin.close()
            process.stdout.close()
            process.wait(timeout=20)


def test_the_kernels_own_report_and_the_scan_agree_on_a_real_hung_task(
    hung: tuple[subprocess.Popen[bytes], Path], tmp_path: Path
) -> None:
    process, mount = hung
    site = FakeSite(FakeHost(tmp_path / "host"))
    site.host.paths = Paths()
    scan = HungTaskScan(ScanOptions(host=timedelta(seconds=20)))
    subject = f"task:{COMM}"

    def look() -> list[object]:
        answer = [one for one in scan.poll(site) if one.subject == subject]
        site.clock.advance(timedelta(seconds=10))
        return list(answer)

    with kernel_log() as log, setting("hung_task_warnings", 10), setting("hung_task_timeout_secs", TIMEOUT):
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        finding = reported(log, process.pid, seconds=TIMEOUT * 2 + 10)
    expected = {"comm": COMM, "tgid": process.pid, "class": "frozen", "by": "khungtaskd", "comm_truncated": True}
    assert {name: finding.facts.get(name) for name in expected} == expected
    assert finding.subject == subject
    assert finding.live
    assert int(str(finding.facts["seconds"])) >= TIMEOUT

    seen = [look() for _ in range(4)][-1]
    (scanned,) = seen
    assert isinstance(scanned, Finding)
    assert (scanned.facts["pid"], scanned.facts["class"]) == (process.pid, "frozen")
    assert scanned.facts["where"] == finding.facts["where"]

    thaw(mount)
    process.wait(timeout=20)
    assert look() == []
