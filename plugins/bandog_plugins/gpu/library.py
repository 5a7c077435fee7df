"""Which NVML this process has loaded, and which one a program started now would load. For the child program."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path


class Library:
    """The file of the NVML that this process has loaded, and what lies in its place now.

    After a package upgrade the loaded one goes on as before, while every new program meets the new one: the
    services too, when they are started again.
    """

    def __init__(self) -> None:
        self._link: Path | None = None
        self._loaded: tuple[int, int] | None = None

    def find(self) -> None:
        """Find the file, once NVML has been loaded."""
        if self._link is not None:
            return
        with suppress(OSError):
            maps = Path("/proc/self/maps").read_text("utf-8", "replace")
            if match := re.search(r"(/\S.*)/libnvidia-ml\.so\S*", maps):
                self._link = Path(match[1], "libnvidia-ml.so.1")
                self._loaded = self._file()

    def version(self) -> str:
        """Return the version that a program started now would load, by the name of its file; "" if it has none."""
        if self._link is None:
            return ""
        match = re.search(r"\.so\.(\d+\.\d[\d.]*)\Z", os.path.realpath(self._link))
        return match[1] if match else ""

    def is_old(self) -> bool:
        """Return whether another file lies there by now."""
        now = self._file()
        return now is not None and self._loaded is not None and now != self._loaded

    def _file(self) -> tuple[int, int] | None:
        if self._link is None:
            return None
        try:
            stat = self._link.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino
