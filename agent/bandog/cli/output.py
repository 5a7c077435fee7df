"""What the commands print on, and how: each line in one piece for a pipe, nothing that a terminal would obey.

Names and log lines come from processes that nobody has vetted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNFOLDED = 100_000  # columns
COLOURS = {"critical": "bold red", "error": "red", "warning": "yellow", "info": "cyan"}
"""How rich shows a severity."""


def console() -> Console:
    """Return a console of the terminal's width; grep and files get lines that are not folded."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNFOLDED)


def plain(text: object) -> str:
    """Return `text` on one line, without anything that a terminal obeys or cannot show."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(text))


def shown(text: object) -> str:
    """Return `text` plain, and without what rich would take for markup."""
    from rich.markup import escape

    return escape(plain(text))
