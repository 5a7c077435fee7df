"""The chain on the dog, on the whole agent: budgets, the breaker, and clocks that lie (DESIGN section 7)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bandog.domain.model import Incident, IncidentState, StepState
from bandog.store.rows import SavedRequest
from simhost.clock import WorldClock
from simhost.scene import Scene, Story
from simhost.world import World, gpu, xid

POLICY = """\
policy: test-xid
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 5s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 1s}
"""
DISARMED = """\
policy: test-disarmed
match: {kind: [agent.breaker-tripped, agent.state-lost]}
quiet: 1m
resolve: cleared
notify: [oncall]
steps:
  - do: notify
    with: {to: [oncall], urgent: true, text: "Bandog has disarmed itself: $why"}
"""
ENDS = (IncidentState.RESOLVED, IncidentState.STUCK)
RATE = 50.0
"""The world's clock: an hour takes 72 s, the waits between five restarts (150 s) take three."""


def of_gpu(host: World, number: int) -> list[Incident]:
    """Return the incidents of GPU `number`."""
    return [one for one in host.incidents() if one.subject == f"gpu:{gpu(number)}"]


def crash(host: World, number: int) -> Incident:
    """Let the unit of GPU `number` die of a new Xid; wait until nothing more comes of it."""
    before = len(of_gpu(host, number))
    host.systemd.crash(f"s{number}.service")
    host.kernel.print(xid(number))
    host.until(
        lambda: (
            len(found := of_gpu(host, number)) > before
            and found[-1].state in (IncidentState.RESOLVED, IncidentState.STUCK)
        ),
        alive=True,
    )
    return of_gpu(host, number)[-1]


def urgent(host: World) -> list[dict[str, Any]]:
    """Return the pages at the webhook."""
    return [one for one in host.sink.messages if one["urgent"]]


def ask(host: World, do: str, **arguments: Any) -> Any:
    """Give an order over the control socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(host.root / "run/control"))
        link.sendall(json.dumps({"do": do, "with": arguments}).encode() + b"\n")
        answer = json.loads(link.makefile().readline())
    assert answer["ok"], answer
    return answer["answer"]


def a_unit_that_crashes_ten_times_is_restarted_five_times_and_paged_once(scene: Scene) -> None:
    host = scene.world(policies={"10-test": POLICY}, rate=RATE)
    host.settle_in()
    for _ in range(5):
        assert crash(host, 1).state is IncidentState.RESOLVED
    assert host.jobs() == {"restart s1.service": 5}

    stuck = crash(host, 1)
    assert stuck.state is IncidentState.STUCK
    for _ in range(4):
        findings = host.incidents()[-1].findings
        host.kernel.print(xid(1))
        time.sleep(6 / RATE)  # past the window in which lines are one event
        host.until(lambda findings=findings: host.incidents()[-1].findings > findings, alive=True)
    (last,) = (one for one in host.requests() if one.request.incident == stuck.id)
    assert last.state is StepState.EXHAUSTED
    assert "5 per 1h" in last.why
    host.until(lambda: urgent(host))
    host.stop()
    assert host.jobs() == {"restart s1.service": 5}
    assert [one["incident"] for one in urgent(host)] == [stuck.id], "one page"
    assert len(host.charges()) == 5


def a_host_over_its_budget_only_observes_until_it_is_armed_again(scene: Scene) -> None:
    host = scene.world(
        policies={"10-test": POLICY, "90-disarmed": DISARMED},
        services=6,
        main="budgets: {restart: 2 per 1h, host: 8 per 24h}\n",
        rate=RATE,
    )
    host.settle_in()
    for number in (1, 2, 3, 4):
        for _ in range(2):
            assert crash(host, number).state is IncidentState.RESOLVED
    assert sum(host.jobs().values()) == 8
    crash_on(host, 5)
    crash_on(host, 4)
    tripped = [one for one in host.incidents() if one.kind == "agent.breaker-tripped"]
    assert len(tripped) == 1
    host.until(lambda: [one for one in urgent(host) if one["kind"] == "agent.breaker-tripped"])
    assert "rearm" in ask(host, "status")["breaker"]

    host.stop()
    host.reboot(WorldClock.boot(utc=host.clock.now().utc, rate=RATE, up=timedelta(minutes=20)))
    host.settle_in()
    assert "rearm" in ask(host, "status")["breaker"]
    crash_on(host, 3)
    host.until(lambda: host.told("would have restarted s3"))
    assert sum(host.jobs().values()) == 8
    assert len([one for one in host.incidents() if one.kind == "agent.breaker-tripped"]) == 1
    assert len([one for one in urgent(host) if one["kind"] == "agent.breaker-tripped"]) == 1, "said once"

    before = dict(host.jobs())
    halted = {one.id for one in host.incidents() if one.step_state is StepState.WOULD and not one.state.ended}
    armed = ask(host, "rearm", by="ann")
    assert {one["id"] for one in armed["waiting"]} == halted
    assert len(halted) == 3
    status = ask(host, "status")
    assert status["breaker"] == ""
    assert {one["id"] for one in status["incidents"] if one["waits"]} == halted
    assert dict(host.jobs()) == before, "what was only observed is not made up for"
    assert crash(host, 6).state is IncidentState.RESOLVED
    assert host.jobs()["restart s6.service"] == 1
    host.until(lambda: all(one.state.ended for one in host.incidents() if one.kind == "agent.breaker-tripped"), 20)
    host.stop()


def restarts(host: World) -> list[SavedRequest]:
    """Return every request for a restart."""
    return [one for one in host.requests() if one.request.action == "restart"]


def crash_on(host: World, number: int) -> None:
    """Let a unit die on a host whose breaker is open; wait for what would have been done."""
    before = len(restarts(host))
    host.systemd.crash(f"s{number}.service")
    host.kernel.print(xid(number))
    host.until(lambda: len(found := restarts(host)) > before and found[-1].state.ended, alive=True)
    assert restarts(host)[-1].state is StepState.WOULD, restarts(host)[-1]
    host.systemd.boot(f"s{number}.service")


def a_clock_that_starts_in_the_year_2000_frees_no_budget(scene: Scene) -> None:
    host = scene.world(policies={"10-test": POLICY}, main="budgets: {restart: 2 per 1h}\n", rate=RATE)
    host.settle_in()
    for _ in range(2):
        assert crash(host, 1).state is IncidentState.RESOLVED
    host.stop()
    dead_battery = WorldClock.boot(
        utc=datetime(2000, 1, 1, tzinfo=UTC), rate=RATE, up=timedelta(minutes=5), synced=False
    )
    host.reboot(dead_battery)
    host.settle_in()
    assert crash(host, 1).state is IncidentState.STUCK
    assert sum(host.jobs().values()) == 2
    host.stop()

    # A year later by a clock that nobody steers: it may show any year and proves nothing.
    wild = replace(WorldClock.boot(utc=datetime(2035, 1, 1, tzinfo=UTC), rate=RATE, up=timedelta(minutes=6)))
    host.reboot(replace(wild, synced=False))
    host.settle_in()
    host.systemd.crash("s1.service")
    host.kernel.print(xid(1))
    host.until(lambda: host.incidents()[-1].findings > 1, alive=True)
    host.stop()
    assert sum(host.jobs().values()) == 2


def a_database_that_cannot_be_read_means_observe_until_armed_again(scene: Scene) -> None:
    """Without its record the agent cannot know what it has done; a restart of it does not make it forget that."""
    host = scene.world(policies={"10-test": POLICY, "90-disarmed": DISARMED}, services=2, rate=RATE)
    host.settle_in()
    assert crash(host, 1).state is IncidentState.RESOLVED
    host.stop()
    (host.state / "bandog.db").write_bytes(b"not a database" * 1000)
    host.settle_in()
    host.until(lambda: [one for one in urgent(host) if "was not readable" in one["message"]], alive=True)
    crash_on(host, 1)
    host.kill()
    host.start()
    crash_on(host, 2)
    assert host.jobs() == {"restart s1.service": 1}
    assert "was not readable" in ask(host, "status")["breaker"]

    ask(host, "rearm", by="ann")
    host.until(lambda: all(one.state.ended for one in host.incidents() if one.kind.startswith("agent.")), alive=True)
    host.until(lambda: all(one.state is not IncidentState.OPEN for one in host.incidents()), alive=True)
    host.stop()
    assert list(host.state.glob("bandog.db.broken-*")), "the broken file is kept"


STORIES: list[Story] = [
    a_database_that_cannot_be_read_means_observe_until_armed_again,
    a_unit_that_crashes_ten_times_is_restarted_five_times_and_paged_once,
    a_host_over_its_budget_only_observes_until_it_is_armed_again,
    a_clock_that_starts_in_the_year_2000_frees_no_budget,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_budgets(together: Callable[[Story], None], story: Story) -> None:
    together(story)
