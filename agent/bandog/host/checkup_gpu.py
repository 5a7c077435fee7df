"""The topic `gpu` of `bandog doctor`: is there a driver, does its library fit it, is it kept loaded.

The driver itself is asked by nvidia-smi only, in a child with a deadline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from .checkup import BAD, OK, UNKNOWN, WARN, Check
from .child import Children
from .paths import Paths

TOPIC = "gpu"
NVIDIA = "0x10de"
"""The vendor's number on the PCI bus (pci.ids)."""
DISPLAY = "0x03"
"""Class of display and 3D controllers; a GPU's audio function and NVSwitches are others."""
SMI = "/usr/bin/nvidia-smi"
SMI_DEADLINE = timedelta(seconds=20)
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
)


def gpu(paths: Paths, *, patience: timedelta = SMI_DEADLINE) -> Iterator[Check]:
    """Whether the driver can be asked for the GPUs, and how often that can be done."""
    cards, module, library = _cards(paths), _module(paths), _library(paths)
    if module is None:
        yield _no_driver(cards, library is not None)
        return
    yield Check(topic=TOPIC, name="driver", state=OK, what=f"driver {module or 'of unknown version'} is loaded")
    yield _fit(module, library)
    yield _persistence(paths, patience)


def _no_driver(cards: int, installed: bool) -> Check:
    if installed:
        return Check(
            topic=TOPIC,
            name="driver",
            state=BAD,
            what="the NVIDIA driver is installed but not loaded: no GPU can be used or watched",
            fix="modprobe nvidia; where that fails, journalctl -k -g NVRM and dkms status say why",
        )
    if cards:
        return Check(
            topic=TOPIC,
            name="driver",
            state=BAD,
            what=f"no NVIDIA driver: {cards} NVIDIA GPUs on the PCI bus are not watched",
            fix="install the driver (Debian: apt install nvidia-driver; Ubuntu: ubuntu-drivers install)",
        )
    return Check(topic=TOPIC, name="driver", state=UNKNOWN, what="no NVIDIA driver, and no NVIDIA GPU on the PCI bus")


def _fit(module: str, library: str | None) -> Check:
    if not module or not library:
        which = "driver" if not module else "library"
        return Check(topic=TOPIC, name="library", state=UNKNOWN, what=f"the {which}'s version cannot be told")
    if module == library:
        return Check(topic=TOPIC, name="library", state=OK, what="the driver and its library are of one version")
    return Check(
        topic=TOPIC,
        name="library",
        state=BAD,
        what=f"the loaded driver is {module}, its library on disk {library}: what runs goes on, but nothing that "
        "is started now can use a GPU",
        fix="reboot in the next window; until then restart no service that uses a GPU",
    )


def _persistence(paths: Paths, patience: timedelta) -> Check:
    name = "persistence"
    program = paths.at(SMI)
    if not program.exists():
        return Check(
            topic=TOPIC,
            name=name,
            state=UNKNOWN,
            what=f"{SMI} is not there: nobody can tell whether persistence mode is on",
            fix="install the driver's nvidia-smi (Debian: apt install nvidia-smi)",
        )
    children = Children()
    try:
        outcome = children.run(
            [str(program), "--query-gpu=persistence_mode", "--format=csv,noheader"], deadline=patience
        )
    finally:
        children.close()
    if outcome.timed_out:
        return Check(
            topic=TOPIC,
            name=name,
            state=BAD,
            what=f"nvidia-smi gives no answer within {patience.total_seconds():g} s: the driver hangs",
            fix="reboot; bandog incidents and journalctl -k -g 'NVRM|nvidia' tell what came before",
        )
    modes = outcome.out.decode("utf-8", "replace").split()
    off = sum(mode != "Enabled" for mode in modes)
    if not outcome.ok or not modes:
        words = (outcome.err or outcome.out).decode("utf-8", "replace").strip().split("\n")[-1][:200]
        return Check(topic=TOPIC, name=name, state=UNKNOWN, what=f"nvidia-smi fails: {words or outcome.code}")
    if not off:
        return Check(topic=TOPIC, name=name, state=OK, what=f"persistence mode is on, on {len(modes)} GPUs")
    return Check(
        topic=TOPIC,
        name=name,
        state=WARN,
        what=f"persistence mode is off on {off} of {len(modes)} GPUs: each look initialises them anew, so bandog "
        "looks once a minute only",
        fix="systemctl enable --now nvidia-persistenced (where its unit says --no-persistence-mode, take that out "
        "with systemctl edit), or nvidia-smi -pm 1 at each boot",
    )


def _cards(paths: Paths) -> int:
    found = 0
    for device in paths.at("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text("ascii").strip() for name in ("vendor", "class"))
        except (OSError, ValueError):
            continue
        found += vendor == NVIDIA and kind.startswith(DISPLAY)
    return found


def _module(paths: Paths) -> str | None:
    """Return the version of the loaded module, "" if it does not tell, None where none is loaded."""
    place = paths.at("/sys/module/nvidia")
    if not place.is_dir():
        return None
    try:
        return (place / "version").read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _library(paths: Paths) -> str | None:
    """Return the version in the name of the file behind libnvidia-ml.so.1, "" if it has none, None without one."""
    for folder in FOLDERS:
        link = paths.at(folder) / "libnvidia-ml.so.1"
        try:
            name = link.resolve(strict=True).name
        except (OSError, RuntimeError):
            continue
        match = re.search(r"\.so\.(\d+\.\d[\d.]*)\Z", name)
        return match[1] if match else ""
    return None
