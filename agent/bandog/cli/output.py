"""What the commands print on: folded for a terminal, each line in one piece for a pipe or a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNFOLDED = 100_000  # columns


def console() -> Console:
    """Return a console of the terminal's width; grep and files get lines that are not folded."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNFOLDED)
