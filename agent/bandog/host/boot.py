"""Which boot this is: everything that must not be mistaken for an earlier one is tied to its id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .paths import Paths


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFacts:
    """This boot: its id, the running kernel's release, and how long the host has been up."""

    boot_id: str
    kernel: str
    up: timedelta


def boot_id(paths: Paths) -> str:
    """Return this boot's id as 32 hex digits, the form that the journal and `journalctl -b` use.

    Source: `/proc/sys/kernel/random/boot_id` (random(4)), which spells it with dashes. Raises
    OSError if it cannot be read, ValueError if it is none: without it no record could be trusted.
    """
    return plain_boot_id((paths.proc / "sys/kernel/random/boot_id").read_text("ascii", "replace"))


def plain_boot_id(text: str) -> str:
    """Return a boot id in any spelling as 32 lower-case hex digits; raises ValueError if it is none."""
    plain = text.strip().replace("-", "").lower()
    if len(plain) != 32 or not set(plain) <= set("0123456789abcdef"):
        raise ValueError(f"{text.strip()[:64]!r} is no boot id (expected 32 hex digits)")
    return plain


def boot_facts(paths: Paths) -> BootFacts:
    """Return what is known of this boot; raises OSError or ValueError where /proc cannot be read."""
    up = float((paths.proc / "uptime").read_text("ascii").split()[0])
    kernel = (paths.proc / "sys/kernel/osrelease").read_text("utf-8", "replace").strip()
    return BootFacts(boot_id=boot_id(paths), kernel=kernel, up=timedelta(seconds=up))
