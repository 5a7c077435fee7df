"""Telling a first start from lost state (DESIGN section 7, "Lost state").

Budgets live in the database. Without it an agent would believe that nothing was ever done, so a
host that has had one, and has none now, only observes until a person arms it again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..host.paths import Paths
from .database import How, Opened

MANY_BOOTS = 3
"""So many boots within an hour without a database look like a reboot loop that eats its own record."""


def marker_path(paths: Paths) -> Path:
    """Return the file that says that this host has had a database; it lies apart from the database."""
    return paths.etc / ".has-state"


def is_marked(marker: Path | None) -> bool | None:
    """Return whether the marker is there; None when that cannot be told. Blocking."""
    if marker is None:
        return None
    try:
        marker.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return True


def leave_mark(marker: Path | None) -> None:
    """Write the marker unless it is there. Blocking; a read-only /etc is no reason to stop."""
    if marker is None:
        return
    with contextlib.suppress(OSError):
        file = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, b"bandog keeps its state in /var/lib/bandog. Do not delete this file.\n")
            os.fsync(file)
        finally:
            os.close(file)


def state_lost(opened: Opened, boots_last_hour: int | None) -> str | None:
    """Return why the state must be taken for lost, or None.

    `boots_last_hour` counts this boot too; None when it cannot be told. An UNAVAILABLE database is
    not lost: nothing disruptive happens without it anyway.
    """
    if opened.how is How.SET_ASIDE:
        return f"the database was not readable ({opened.why}) and was set aside as {opened.aside}"
    if opened.how is not How.FRESH:
        return None
    if opened.marked:
        return "there is no database, although this host has had one"
    if boots_last_hour is not None and boots_last_hour >= MANY_BOOTS:
        return f"there is no database, and the host has booted {boots_last_hour} times within the last hour"
    return None
