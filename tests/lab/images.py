"""Lays out the lab's disk image of a release: Debian with its own kernel, ssh, and the module that prints.

The image knows nothing of bandog; the .deb is installed in the running machine. It is kept in
`tests/lab/.cache` and made anew when what it is made from has changed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

LAB = Path(__file__).parent
PROJECT = LAB.parent.parent
CACHE = LAB / ".cache"
PACKAGING = PROJECT / "packaging"

DISK_SIZE = "3G"
# What the initial RAM disk needs to mount the root of a virtual machine; a small one boots sooner.
BOOT_MODULES = "virtio_pci\nvirtio_blk\next4\n"
NETWORK = "[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n"
# Work that a fresh Debian does by itself and that would make the lab's timing uneven.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-networkd-wait-online.service",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A disk with the kernel and initial RAM disk to start it with, and the key that opens it."""

    release: str
    disk: Path
    kernel: Path
    initrd: Path
    key: Path


def ssh_key() -> Path:
    """Return the private key of the lab, made at first use."""
    key = CACHE / "id_ed25519"
    if not key.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bandog-lab", "-f", str(key)], check=True)
    return key


def image(release: str) -> Image:
    """Return the image of `release`, built if there is none of what it is made from today."""
    place = CACHE / release
    found = Image(
        release=release,
        disk=place / "disk.raw",
        kernel=place / "vmlinuz",
        initrd=place / "initrd",
        key=ssh_key(),
    )
    stamp = place / "made-from"
    made_from = _fingerprint()
    if not stamp.exists() or stamp.read_text() != made_from:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        _build(found, place / "root")
        stamp.write_text(made_from)
    return found


def _fingerprint() -> str:
    digest = hashlib.sha256()
    sources = [
        PACKAGING / "debian-packages.txt",
        PACKAGING / "release-root",
        ssh_key().with_suffix(".pub"),
        Path(__file__),
        *sorted((LAB / "guest").iterdir()),
    ]
    for source in sources:
        if source.is_file():
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _run(*argv: str | Path) -> str:
    return subprocess.run([str(one) for one in argv], check=True, stdout=subprocess.PIPE, text=True).stdout


def _packages(section: str) -> list[str]:
    return _run(PACKAGING / "need", "--list", section).split()


def _build(image: Image, root: Path) -> None:
    _run(PACKAGING / "release-root", "lay", image.release, root, *_packages("guest"))
    _configure(root)
    _run(PACKAGING / "release-root", "add", image.release, root, "linux-image-amd64")
    version = next(root.glob("boot/vmlinuz-*")).name.removeprefix("vmlinuz-")
    _install_module(image.release, root, version)
    shutil.copy(root / f"boot/vmlinuz-{version}", image.kernel)
    shutil.copy(root / f"boot/initrd.img-{version}", image.initrd)
    (root / "usr/sbin/policy-rc.d").unlink()
    for junk in ("var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "run/lent"):
        shutil.rmtree(root / junk, ignore_errors=True)
    _run("mke2fs", "-q", "-t", "ext4", "-L", "lab", "-E", "root_owner=0:0", "-d", root, image.disk, DISK_SIZE)
    shutil.rmtree(root)


def _configure(root: Path) -> None:
    files = {
        "etc/hostname": "lab\n",
        "etc/hosts": "127.0.0.1 localhost lab\n",
        "etc/fstab": "/dev/vda / ext4 errors=remount-ro 0 1\n",
        "etc/systemd/network/lab.network": NETWORK,
        "etc/initramfs-tools/modules": BOOT_MODULES,
        "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=gzip\nBUSYBOX=n\nFSTYPE=ext4\n",
        "etc/modules-load.d/lab.conf": "bandog_lab\nloop\n",
        "etc/ssh/sshd_config.d/lab.conf": "UseDNS no\nHostKey /etc/ssh/ssh_host_ed25519_key\nMaxStartups 50\n",
        "root/.ssh/authorized_keys": ssh_key().with_suffix(".pub").read_text(),
        "etc/machine-id": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "root/.ssh").chmod(0o700)
    (root / "var/log/journal").mkdir(exist_ok=True)
    inside = (PACKAGING / "release-root", "run", root)
    _run(*inside, "systemctl", "--quiet", "enable", "systemd-networkd.service", "ssh.service")
    _run(*inside, "systemctl", "--quiet", "mask", *MASKED)


def _install_module(release: str, root: Path, version: str) -> None:
    """Compile the printing module where the compiler is, in the build root, for the image's kernel."""
    builder = PROJECT / ".cache/build" / release
    _run(PACKAGING / "release-root", "add", release, builder, f"linux-headers-{version}")
    work = builder / "build/lab-module"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name in ("bandog_lab.c", "Kbuild"):
        shutil.copy(LAB / "guest" / name, work / name)
    _run(
        *(PACKAGING / "release-root", "run", builder, "make", "-s"),
        *("-C", f"/lib/modules/{version}/build", "M=/build/lab-module", "modules"),
    )
    target = root / f"lib/modules/{version}/updates"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(work / "bandog_lab.ko", target)
    _run(PACKAGING / "release-root", "run", root, "depmod", version)
