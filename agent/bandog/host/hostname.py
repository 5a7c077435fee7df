"""The host's name as people are told it."""

from __future__ import annotations

from .paths import Paths


def short_hostname(paths: Paths) -> str:
    """Return the host name up to its first dot, `localhost` where the kernel has none (hostname(7))."""
    try:
        text = (paths.proc / "sys/kernel/hostname").read_text("utf-8", "replace").strip()
    except OSError:
        text = ""
    return text.split(".")[0] or "localhost"
