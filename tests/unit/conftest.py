"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class LoopDisk:
    """A real ext4 file system on a loop device, mounted at `mount`, that can be frozen."""

    mount: Path

    def freeze(self) -> None:
        """From now on every writer waits in D state (FIFREEZE, ioctl_fifreeze)."""
        subprocess.run(["fsfreeze", "-f", str(self.mount)], check=True)

    def thaw(self) -> None:
        """Let them go on."""
        subprocess.run(["fsfreeze", "-u", str(self.mount)], check=True)


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A disk of its own; thawed and unmounted whatever happens."""
    if os.geteuid() != 0 or shutil.which("fsfreeze") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("freezing a file system needs root, fsfreeze and mkfs.ext4")
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no loop device can be mounted here: {mounted.stderr.strip()}")
    disk = LoopDisk(mount)
    try:
        yield disk
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["fsfreeze", "-u", str(mount)], check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "-l", str(mount)], check=True)
