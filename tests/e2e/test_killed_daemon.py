"""The whole agent killed with SIGKILL, at the worst moments and at random ones (DESIGN sections 6 and 7).

PID 1 survives and counts. A request is acted on once at most, each act had its intent and its
charge on the disk before it, and every incident goes on to its end.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from bandog.domain.model import IncidentState, StepState
from bandog.store.rows import SavedRequest
from simhost.clock import WorldClock
from simhost.scene import Scene, Story
from simhost.world import World, moments, table, xid

CHAOS = """
import json, os, signal, socket
from datetime import timedelta

from bandog import Action, Options, Proof, Result, hookimpl


def pid1(do, name):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ["SIMHOST_PID1"])
        link.sendall(json.dumps({"do": do, "name": name}).encode() + b"\\n")
        return json.loads(link.makefile().readline())


class Act(Action):
    \"\"\"Asks PID 1 for a change that only it can count.\"\"\"

    name = "chaos-act"
    per_service = True
    proof_every = timedelta(seconds=1)
    proof_deadline = timedelta(minutes=1)

    def run(self, request, site):
        pid1("act", request.id)
        return Result.done("acted")

    def prove(self, request, result, site):
        if not pid1("acted", request.id):
            return Proof.disproved("it was never done")
        if request.facts["sick"]:
            return Proof.disproved("it did not help")
        return Proof.proved("it helped")


class KillFirst(Act):
    name = "kill-first"

    def run(self, request, site):
        os.kill(os.getpid(), signal.SIGKILL)
        return super().run(request, site)


class KillAfter(Act):
    name = "kill-after"

    def run(self, request, site):
        pid1("act", request.id)
        os.kill(os.getpid(), signal.SIGKILL)
        return Result.done("acted")


@hookimpl
def register_actions(register):
    for cls in (Act, KillFirst, KillAfter):
        register(cls)
"""
POLICY = """\
policy: test-xid
match: {{kind: nvidia.xid, facts: {{xid: [94]}}}}
severity: error
quiet: 10s
notify: [oncall]
steps:
  - do: {first}
  - do: restart
    with: {{settle: 2s}}
"""
BUDGETS = "budgets: {restart: 1000 per 1h, host: 5000 per 24h}\n"
RATE = 5.0
"""How much faster than ours the world's clock runs: 10 s of quiet are 2 s."""


LONGEST_LIFE = 1.2
"""Seconds until an agent is killed, at most: it starts within one."""


def interrupted(request: SavedRequest) -> bool:
    """True when the agent died between the act's beginning and its result."""
    return request.result is not None and bool(request.result.facts.get("interrupted"))


def show(host: World, tables: list[str], title: str, killed: int) -> dict[str, int]:
    """Keep the table of disruptive calls per request for the summary; return calls per request."""
    calls = Counter(call.request for call in host.pid1.calls)
    requests = [one for one in host.requests() if one.request.disruptive]
    tally = Counter(
        (one.request.action, "interrupted" if interrupted(one) else "whole", calls[one.request.id], one.state.value)
        for one in requests
    )
    rows = [(*key, count) for key, count in sorted(tally.items())]
    twice = sum(times > 1 for times in calls.values())
    foot = (
        f"{killed} kills, {host.starts} starts, {len(host.incidents())} incidents, {len(requests)} requests, "
        f"{len(host.charges())} charges, {sum(calls.values())} calls; requests called twice: {twice}"
    )
    tables.append(f"{title}\n{table(rows, ('action', 'act', 'calls per request', 'end', 'requests'))}\n{foot}")
    return calls


def check(host: World, calls: dict[str, int]) -> None:
    """What must hold after any number of kills."""
    assert host.unrecorded() == [], "an act without a committed intent"
    assert max(calls.values(), default=0) <= 1, f"done twice: {calls}"
    requests = [one for one in host.requests() if one.request.disruptive]
    assert all(one.state.ended for one in requests)
    begun = {one.request.id for one in requests if one.started is not None}
    tried = {one.request.id for one in requests if one.notes.get("_executor", {}).get("attempts")}
    charged = Counter(one.request for one in host.charges())
    assert begun <= set(charged) <= begun | tried, "each act that began is charged, and nothing else"
    assert set(charged.values()) <= {1}
    assert set(calls) <= begun


def ended(host: World, count: int) -> bool:
    """True once `count` incidents are there and nothing more will come of any of them."""
    found = host.incidents()
    return len(found) >= count and all(
        one.state is IncidentState.STUCK or one.state.ended for one in found if not one.kind.startswith("agent.")
    )


def killed_at_the_act(scene: Scene, first: str, *, acted: bool) -> None:
    """The agent dies in `run`, starts again, and proves instead of acting again."""
    plugins = {"chaos": CHAOS.replace('request.facts["sick"]', "False")}
    host = scene.world(policies={"10-test": POLICY.format(first=first)}, plugins=plugins, rate=2 * RATE)
    host.settle_in()
    host.kernel.print(xid(1))
    assert host.ended() == -signal.SIGKILL

    host.start()
    host.until(lambda: ended(host, 1), alive=True)
    host.stop()
    calls = show(
        host, scene.tables, f"SIGKILL {'right after the act' if acted else 'as the first statement of run'}", 1
    )
    check(host, calls)
    (incident,) = host.incidents()
    requests = {one.request.action: one for one in host.requests()}
    assert interrupted(requests[first])
    assert incident.state is IncidentState.RESOLVED
    if acted:
        assert requests[first].state is StepState.PROVED
        assert host.jobs() == {f"act {requests[first].request.id}": 1}
    else:
        assert requests[first].state is StepState.FAILED
        assert requests["restart"].state is StepState.PROVED
        assert host.jobs() == {"restart s1.service": 1}


def killed_before_the_act_it_climbs(scene: Scene) -> None:
    """SIGKILL as the first statement of `run`."""
    killed_at_the_act(scene, "kill-first", acted=False)


def killed_right_after_the_act_it_proves_it(scene: Scene) -> None:
    """SIGKILL between the act and its result."""
    killed_at_the_act(scene, "kill-after", acted=True)


def a_power_cut_in_the_middle_of_a_ladder_is_settled_by_the_boot_id(scene: Scene) -> None:
    """One restart was asked for and one waited for its turn; the host goes down and comes up again."""
    host = scene.world(policies={"10-test": POLICY.format(first="restart")}, services=2, rate=RATE, pause=lambda: 0.3)
    host.settle_in()
    host.kernel.print(xid(1))
    host.until(lambda: host.pid1.calls, alive=True)
    host.kernel.print(xid(2))
    host.until(lambda: len(host.requests()) == 2, alive=True)
    host.kill()
    host.reboot(WorldClock.boot(utc=host.clock.now().utc, rate=RATE, up=timedelta(minutes=6)))
    host.start()
    host.until(lambda: ended(host, 2), alive=True)
    host.stop()
    calls = show(host, scene.tables, "power cut in the middle of a ladder", 1)
    check(host, calls)
    assert host.jobs() == {"restart s1.service": 1}
    first, second = (one for one in host.requests() if one.request.step == 0)
    assert first.state is StepState.PROVED, first.why
    assert interrupted(first)
    assert second.state is StepState.SKIPPED
    assert second.why == "its finding is of an earlier boot"


DEADLY = """
import os

from bandog import LogDetector, hookimpl


class Deadly(LogDetector):
    name = "deadly"
    needles = (b"lab deadly",)
    emits = {"lab.deadly": {}}

    def feed(self, record):
        os._exit(3)


@hookimpl
def register_detectors(register):
    register(Deadly)
"""


BROKEN = """\
policy: test-broken
match: {kind: agent.plugin-broken}
quiet: 24h
resolve: quiet
notify: [oncall]
"""


def a_plugin_that_ends_the_agent_is_left_out_after_the_second_time(scene: Scene) -> None:
    """Each start reads the record that did it once more."""
    policies = {"10-test": POLICY.format(first="restart"), "90-broken": BROKEN}
    host = scene.world(policies=policies, plugins={"deadly": DEADLY}, rate=RATE)
    host.settle_in()
    host.kernel.print("lab deadly")
    assert host.ended() == 3
    host.spawn()
    assert host.ended() == 3

    host.start()
    assert "plugin=deadly" in host.log()
    assert "it ended the agent 2 times" in host.log()
    host.until(lambda: any("deadly" in one for one in host.told("it ended the agent 2 times")), alive=True)
    host.kernel.print("lab deadly")
    host.kernel.print(xid(1))
    host.until(lambda: ended(host, 2), alive=True)
    host.stop()
    assert host.jobs() == {"restart s1.service": 1}

    host.spawn()  # a person has stopped and started it: the plugin is tried again
    host.kernel.print("lab deadly")
    assert host.ended() == 3


DEADLY_PROOF = """
import os

from bandog import Action, Result, hookimpl


class Deadly(Action):
    name = "deadly"

    def run(self, request, site):
        return Result.done("done")

    {way} prove(self, request, result, site):
        os._exit(3)


@hookimpl
def register_actions(register):
    register(Deadly)
"""


def an_action_whose_proof_ends_the_agent(scene: Scene, way: str, deaths: int) -> None:
    """Each start asks for the proof once more; when the action is left out, the ladder goes on."""
    policies, plugins = {"10-test": POLICY.format(first="deadly")}, {"deadly": DEADLY_PROOF.replace("{way}", way)}
    host = scene.world(policies=policies, plugins=plugins, rate=RATE)
    host.settle_in()
    host.kernel.print(xid(1))
    for _ in range(deaths):
        assert host.ended() == 3
        host.spawn()
    host.until(lambda: ended(host, 1), alive=True)
    host.stop()
    ends = {one.request.action: (one.state, one.why) for one in host.requests()}
    assert ends["deadly"][0] is StepState.FAILED, ends
    assert ends["restart"][0] is StepState.PROVED, ends
    assert host.jobs() == {"restart s1.service": 1}
    assert "tries it again" in host.log()


def a_proof_on_the_loop_that_ends_the_agent_is_asked_for_twice(scene: Scene) -> None:
    """It is the only one that can have been it."""
    an_action_whose_proof_ends_the_agent(scene, "async def", 2)


def a_proof_in_a_thread_that_ends_the_agent_is_asked_for_three_times(scene: Scene) -> None:
    """A death from outside may have met it by chance, but not three times in a row."""
    an_action_whose_proof_ends_the_agent(scene, "def", 3)


def killed_at_random(scene: Scene, kills: int, seed: int) -> None:
    """Kill the agent at random moments of its life, its start included, while faults come in; let it end all."""
    chance = random.Random(seed)
    host = scene.world(
        policies={"10-test": POLICY.format(first="chaos-act")},
        plugins={"chaos": CHAOS.replace('request.facts["sick"]', 'int(request.subject.split(":")[2], 16) % 2')},
        services=kills,
        main=BUDGETS,
        rate=RATE,
        pause=lambda: chance.uniform(0.0, 0.05),
    )
    host.settle_in()
    for number, moment in enumerate(moments(seed, kills, 0.0, LONGEST_LIFE), start=1):
        if not host.alive:
            host.spawn()
        time.sleep(moment / 2)
        host.kernel.print(xid(number))
        time.sleep(moment / 2)
        if chance.random() < 0.5:  # these die in the middle of an act, if there is one soon
            acts = len(host.pid1.calls)
            host.waited(lambda acts=acts: len(host.pid1.calls) > acts, 3.0)
            time.sleep(chance.uniform(0.0, 0.06))
        assert host.kill() == -signal.SIGKILL, host.log()[-3000:]
    host.start()
    host.until(lambda: ended(host, kills), 40 + 2 * kills, alive=True)
    host.until(lambda: host.spooled() == 0, 40, alive=True)
    host.stop()
    assert host.told_of() == {one.id for one in host.incidents()}, "nobody was told"

    calls = show(host, scene.tables, f"SIGKILL at {kills} random moments (seed {seed})", kills)
    check(host, calls)
    found = Counter(incident.subject for incident in host.incidents())
    assert set(found.values()) == {1}, f"found twice: {found}"
    assert len(found) == kills, "a fault was lost"
    assert sum(calls.values()) > kills // 2, "most faults were acted on"
    proved = {request.request.incident for request in host.requests() if request.state is StepState.PROVED}
    for incident in host.incidents():
        assert (incident.state is IncidentState.RESOLVED) == (incident.id in proved), incident


SEED = int(os.environ.get("BANDOG_SEED", "20261130"))


def at_random(kills: int, seed: int) -> Story:
    """Return a story of so many kills."""

    def killed_anywhere_nothing_is_lost_or_done_twice(scene: Scene) -> None:
        killed_at_random(scene, kills, seed)

    return killed_anywhere_nothing_is_lost_or_done_twice


STORIES: list[Story] = [
    killed_before_the_act_it_climbs,
    killed_right_after_the_act_it_proves_it,
    a_power_cut_in_the_middle_of_a_ladder_is_settled_by_the_boot_id,
    a_plugin_that_ends_the_agent_is_left_out_after_the_second_time,
    a_proof_on_the_loop_that_ends_the_agent_is_asked_for_twice,
    a_proof_in_a_thread_that_ends_the_agent_is_asked_for_three_times,
    at_random(13, SEED),
    at_random(12, SEED + 1),
]
LONG: list[Story] = [at_random(50, SEED + number) for number in range(2, 6)]


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_killed(together: Callable[[Story], None], story: Story) -> None:
    together(story)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("story", LONG, ids=lambda one: one.__name__)
def test_killed_two_hundred_times(together: Callable[[Story], None], story: Story) -> None:
    together(story)
