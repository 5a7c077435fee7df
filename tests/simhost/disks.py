"""Disks that can be broken and mended: real file systems of their own. Root only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system at `mount`. After `spoil` nothing can be written to it, until `mend`."""

    mount: Path
    spoil: Callable[[], None]
    mend: Callable[[], None]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


@contextmanager
def _mounted(mount: Path, *command: str) -> Iterator[None]:
    """Mount at `mount`; whatever happens it is unmounted at the end."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mount.mkdir(parents=True)
    made = subprocess.run([*command, str(mount)], capture_output=True, text=True, timeout=30)
    if made.returncode != 0:
        pytest.skip(f"{' '.join(command)} does not work here: {made.stderr.strip()}")
    try:
        yield
    finally:
        _run("umount", "-l", str(mount))


@contextmanager
def freezing(root: Path) -> Iterator[Disk]:
    """An ext4 on a loop device; spoilt by FIFREEZE, so that each writer waits in D state. Thawed at the end."""
    if shutil.which("mkfs.ext4") is None or shutil.which("fsfreeze") is None:
        pytest.skip("fsfreeze or mkfs.ext4 is not installed")
    image, mount = root / "disk.img", root / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    _run("mkfs.ext4", "-q", str(image))
    with _mounted(mount, "mount", "-o", "loop", str(image)):
        try:
            yield Disk(
                mount=mount,
                spoil=lambda: _run("fsfreeze", "-f", str(mount)),
                mend=lambda: _run("fsfreeze", "-u", str(mount)),
            )
        finally:
            subprocess.run(["fsfreeze", "-u", str(mount)], check=False, capture_output=True, timeout=30)


@contextmanager
def filling(root: Path) -> Iterator[Disk]:
    """A small tmpfs; spoilt by a file that takes all of it."""
    mount = root / "disk"
    ballast = mount / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            for size in (65536, 4096, 1):
                while True:
                    try:
                        file.write(b"x" * size)
                    except OSError:
                        break

    with _mounted(mount, "mount", "-t", "tmpfs", "-o", "size=4m", "bandog-test"):
        yield Disk(mount=mount, spoil=fill, mend=ballast.unlink)


@contextmanager
def read_only(root: Path) -> Iterator[Disk]:
    """A tmpfs that is read-only from the first moment; spoiling it is done already."""
    mount = root / "disk"
    with _mounted(mount, "mount", "-t", "tmpfs", "-o", "size=4m,ro", "bandog-test"):
        yield Disk(mount=mount, spoil=lambda: None, mend=lambda: _run("mount", "-o", "remount,rw", str(mount)))


@contextmanager
def failing(root: Path) -> Iterator[Disk]:
    """An ext4 that goes read-only after an error, as a root file system does. It cannot be mended."""
    with freezing(root) as disk:
        abort = ("mount", "-o", "remount,abort", str(disk.mount))
        yield Disk(mount=disk.mount, spoil=lambda: _run(*abort), mend=lambda: None)
