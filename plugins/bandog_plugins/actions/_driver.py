"""Does the loaded NVIDIA kernel module fit the library on disk?

After an unattended driver upgrade running processes live on, while every new one fails with
"Driver/library version mismatch"; a restart then turns a living service into a dead one.
"""

from __future__ import annotations

import re
from datetime import timedelta

from bandog import Site

_VERSION = re.compile(r"\b(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)\b")
_DRIVER_CALL = timedelta(seconds=5)
# Where distributions and NVIDIA's installer put the library; Debian's alternatives end below `nvidia/`.
_LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
)


def module_version(site: Site) -> str | None:
    """Return the version of the loaded kernel module, or None without one."""
    try:
        text = site.paths.at("/sys/module/nvidia/version").read_text("utf-8", "replace")
    except OSError:
        text = _ask_driver(site)
    found = _VERSION.search(text)
    return found[1] if found else None


def _ask_driver(site: Site) -> str:
    """Read the driver's own file, in a child because it is a call into the driver and may hang."""
    place = site.paths.at("/proc/driver/nvidia/version")
    if not place.exists():
        return ""
    outcome = site.child(["cat", str(place)], deadline=_DRIVER_CALL, limit=4096)
    return outcome.out.decode("utf-8", "replace") if outcome.ok else ""


def library_version(site: Site) -> str | None:
    """Return the version in the file name that `libnvidia-ml.so.1` leads to, or None without one."""
    for place in _LIBRARY_DIRS:
        link = site.paths.at(place) / "libnvidia-ml.so.1"
        try:
            name = link.resolve(strict=True).name
        except (OSError, RuntimeError):
            continue
        found = _VERSION.search(name.removeprefix("libnvidia-ml.so."))
        if found:
            return found[1]
    return None


def mismatch(site: Site) -> str | None:
    """Return words on a module and a library that differ; None when they fit or one is unknown."""
    module, library = module_version(site), library_version(site)
    if module is None or library is None or module == library:
        return None
    return f"kernel module {module}, library {library}"
