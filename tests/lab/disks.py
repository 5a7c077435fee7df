"""File systems of the lab that can be frozen or filled: a file with ext4 in it, mounted where wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .machine import Machine

SIZE = "24M"


@contextmanager
def small_disk(vm: Machine, place: str) -> Iterator[None]:
    """Mount an ext4 of `SIZE` at `place` for the time of the block."""
    image = f"/var/tmp/lab{place.replace('/', '-')}.img"
    vm.ssh(
        f"rm -f {image} && truncate -s {SIZE} {image} && mkfs.ext4 -q -m 0 {image} && "
        f"mkdir -p {place} && mount -o loop {image} {place} && chmod 700 {place}"
    )
    try:
        yield
    finally:
        vm.ssh(f"fsfreeze -u {place} 2>/dev/null; umount {place} || umount -l {place}; rm -f {image}")


@contextmanager
def frozen(vm: Machine, place: str) -> Iterator[None]:
    """Freeze the file system at `place`: who writes to it stays in D state until the block ends."""
    vm.ssh(f"fsfreeze -f {place}")
    try:
        yield
    finally:
        vm.ssh(f"fsfreeze -u {place} 2>/dev/null; true")
