"""Makes the simulated host importable and hands out a stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from simhost.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Make stages that are torn down at the end."""
    made: list[Stage] = []

    def make(**options: Any) -> Stage:
        one = Stage(tmp_path / str(len(made)), **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
