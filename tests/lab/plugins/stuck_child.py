"""A test plugin whose probe has a child that writes to a frozen file system and cannot be killed."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import bandog


class StuckChild(bandog.Probe):
    """Starts the child, and gives it up."""

    name = "stuck-child"
    emits = {"lab.stuck": {}}  # noqa: RUF012  (read only)
    every = timedelta(seconds=5)
    deadline = timedelta(seconds=3)

    def poll(self, site: bandog.Site) -> Iterable[bandog.Finding | bandog.Unknown]:
        """Let a child touch a file on the frozen file system."""
        site.child(["/usr/bin/touch", "/mnt/lab/touched"], deadline=timedelta(seconds=1))
        return (bandog.Unknown(kind="lab.stuck", why="the child does not come back"),)


@bandog.hookimpl
def register_detectors(register: Any) -> None:
    """Add it."""
    register(StuckChild)
