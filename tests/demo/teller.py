"""Prints what happens on a stage as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from bandog.domain.changes import IncidentChanged

WORDS = {
    "opened": "incident opened",
    "step-started": "step begins",
    "step-ended": "step ended",
    "resolved": "resolved",
    "stuck": "stuck",
}


class Teller:
    """Prints lines, each with the seconds since the first."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._begun: float | None = None

    def say(self, text: str, style: str = "bold cyan") -> None:
        """Print a line of the narrator."""
        loop = asyncio.get_running_loop()
        self._begun = self._begun or loop.time()
        self.console.print(f"[dim]{loop.time() - self._begun:5.1f} s[/]  [{style}]{escape(text)}[/]")

    def change(self, change: IncidentChanged) -> None:
        """Print a change of an incident."""
        word = WORDS.get(change.what)
        if word is None:
            return
        action = f" {change.action}" if change.action else ""
        style = "green" if change.what == "resolved" else "yellow"
        self.say(f"#{change.incident.id} {word}{action}: {change.why}", style)

    def messages(self, messages: Iterable[Mapping[str, Any]], threads: str) -> None:
        """Print title and first line of what people were sent; `threads` says in how many."""
        self.console.print(f"\n[bold]Messages sent[/], {threads}:")
        for one in messages:
            first = one["message"].strip().splitlines()[0]
            self.console.print(f"  [bold]{escape(one['title'])}[/]  {escape(first)}")
