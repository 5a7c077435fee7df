"""Where one story plays: the worlds that it makes end with it, and its tables are printed below the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .world import World


class Scene:
    """Made for one story, below `root`."""

    def __init__(self, root: Path, tables: list[str]) -> None:
        self.root = root
        self.tables = tables
        self._worlds: list[World] = []

    def world(self, **options: Any) -> World:
        """Make a host; it is closed when the story ends."""
        one = World(self.root / f"w{len(self._worlds)}", **options)
        self._worlds.append(one)
        return one

    def play(self, story: Callable[[Scene], None]) -> None:
        """Play a story to its end."""
        try:
            story(self)
        finally:
            for one in self._worlds:
                one.close()


Story = Callable[[Scene], None]
"""A behaviour of the whole agent: its name states it, an AssertionError denies it."""
