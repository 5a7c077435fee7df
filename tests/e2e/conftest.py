"""Makes the simulated host importable, hands out stages and worlds, and leaves the long variants out.

A stage runs the agent in the test's own process; a world runs it as a process that may be killed.
BANDOG_SLOW=1 runs the tests marked `slow` too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from simhost.stage import Stage
from simhost.world import World


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the long variants out of the run, unless they are asked for."""
    if os.environ.get("BANDOG_SLOW") == "1":
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


TABLES = pytest.StashKey[list[str]]()


@pytest.fixture
def tables(request: pytest.FixtureRequest) -> list[str]:
    """What is to be printed below the tests' results."""
    return request.config.stash.setdefault(TABLES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tables that tests have kept."""
    for one in config.stash.get(TABLES, []):
        terminalreporter.section(one.partition("\n")[0])
        terminalreporter.write_line(one.partition("\n")[2])


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


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Make worlds that are torn down at the end."""
    made: list[World] = []

    def make(**options: Any) -> World:
        one = World(tmp_path / f"w{len(made)}", **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
