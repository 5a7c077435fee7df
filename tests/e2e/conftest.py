"""Makes the simulated host importable, hands out stages, and plays stories side by side.

On a stage the agent runs in the test's own process. In a story it is a process of its own, which
may be killed; stories mostly wait, so those of a module are played six at a time. BANDOG_SLOW=1
runs the tests marked `slow` too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from simhost.scene import Scene, Story
from simhost.stage import Stage

AT_A_TIME = 6
TABLES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the long variants out of the run, unless they are asked for."""
    if os.environ.get("BANDOG_SLOW") == "1":
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tables that stories have kept."""
    for one in sorted(config.stash.get(TABLES, [])):
        title, _, text = one.partition("\n")
        terminalreporter.section(title)
        terminalreporter.write_line(text)


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Story], None]]:
    """Play the selected stories of the module; call it with one to wait for that one's end."""
    here = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    stories = dict.fromkeys(item.callspec.params["story"] for item in here if hasattr(item, "callspec"))
    tables = request.config.stash.setdefault(TABLES, [])
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        played: dict[Story, Future[None]] = {
            story: pool.submit(Scene(tmp_path_factory.mktemp("scene"), tables).play, story) for story in stories
        }
        yield lambda story: played[story].result()


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
