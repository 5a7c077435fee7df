"""What the whole agent knows again after a restart, and what it must not believe any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bandog.domain.model import IncidentState
from simhost.scene import Scene, Story
from simhost.world import World

PROBE = """
from datetime import timedelta

from bandog import Finding, Probe, Severity, hookimpl


class Thermometer(Probe):
    name = "thermometer"
    emits = {"test.hot": {"degrees": int}}
    every = timedelta(seconds=2)

    def poll(self, site):
        if (site.paths.etc / "raise").exists():
            raise OSError("no thermometer")
        hot = (site.paths.etc / "hot").read_text().split()
        now = site.clock.now()
        return [
            Finding(kind="test.hot", subject="gpu:" + one, severity=Severity.ERROR, at=now, facts={"degrees": 99})
            for one in hot
        ]


@hookimpl
def register_detectors(register):
    register(Thermometer)
"""
HOT = """\
policy: test-hot
match: {kind: test.hot}
severity: error
quiet: 2s
resolve: cleared
notify: [oncall]
"""
STALE = """\
policy: test-stale
match: {kind: agent.probe-stale}
quiet: 2s
resolve: cleared
notify: [oncall]
"""


def states(host: World) -> dict[str, IncidentState]:
    """Return how the newest incident of each subject stands."""
    return {one.subject: one.state for one in host.incidents()}


def what_a_probe_found_before_the_restart_and_is_gone_after_it_resolves(scene: Scene) -> None:
    host = scene.world(policies={"10-hot": HOT}, plugins={"thermometer": PROBE}, rate=10)
    host.write("etc/hot", "a b")
    host.start()
    host.until(lambda: len(host.incidents()) == 2, alive=True)
    host.kill()
    host.write("etc/hot", "b")
    host.start()
    host.until(lambda: states(host)["gpu:a"] is IncidentState.RESOLVED, alive=True)
    assert states(host)["gpu:b"] is IncidentState.OPEN
    assert len(host.incidents()) == 2, "what is still there is no new fault"
    host.write("etc/hot", "")
    host.until(lambda: states(host)["gpu:b"] is IncidentState.RESOLVED, alive=True)
    host.stop()


def what_the_agent_said_of_its_own_process_has_cleared_with_a_new_one(scene: Scene) -> None:
    host = scene.world(policies={"10-stale": STALE}, plugins={"thermometer": PROBE}, rate=10)
    host.write("etc/hot", "")
    host.write("etc/raise", "")
    host.start()
    host.until(lambda: states(host).get("plugin:thermometer") is IncidentState.OPEN, alive=True)
    host.kill()
    (host.root / "etc/raise").unlink()
    host.start()
    host.until(lambda: states(host)["plugin:thermometer"] is IncidentState.RESOLVED, alive=True)
    host.stop()


STORIES: list[Story] = [
    what_a_probe_found_before_the_restart_and_is_gone_after_it_resolves,
    what_the_agent_said_of_its_own_process_has_cleared_with_a_new_one,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_restarted(together: Callable[[Story], None], story: Story) -> None:
    together(story)
