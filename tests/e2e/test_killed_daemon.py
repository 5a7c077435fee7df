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
from concurrent.futures import ThreadPoolExecutor

import pytest

from bandog.domain.model import IncidentState, StepState
from simhost.world import World, moments, table, xid

MakeWorld = Callable[..., World]

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


LONGEST_LIFE = 1.6
"""Seconds until an agent is killed, at most: it starts within one."""


def show(host: World, tables: list[str], title: str, killed: int) -> dict[str, int]:
    """Keep the table of disruptive calls per request for the summary; return calls per request."""
    calls = Counter(call.request for call in host.pid1.calls)
    requests = [one for one in host.requests() if one.request.disruptive]
    tally = Counter((one.request.action, calls[one.request.id], one.state.value) for one in requests)
    rows = [(action, times, end, count) for (action, times, end), count in sorted(tally.items())]
    twice = sum(times > 1 for times in calls.values())
    foot = (
        f"{killed} kills, {host.starts} starts, {len(host.incidents())} incidents, {len(requests)} requests, "
        f"{len(host.charges())} charges, {sum(calls.values())} calls; requests called twice: {twice}"
    )
    tables.append(f"{title}\n{table(rows, ('action', 'calls per request', 'end', 'requests'))}\n{foot}")
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


@pytest.mark.parametrize(("first", "acted"), [("kill-first", False), ("kill-after", True)])
def test_killed_at_the_act_the_agent_proves_instead_of_acting_again(
    world: MakeWorld, tables: list[str], first: str, acted: bool
) -> None:
    plugins = {"chaos": CHAOS.replace('request.facts["sick"]', "False")}
    host = world(policies={"10-test": POLICY.format(first=first)}, plugins=plugins, rate=2 * RATE)
    host.settle_in()
    host.kernel.print(xid(1))
    assert host.ended() == -signal.SIGKILL

    host.start()
    host.until(lambda: ended(host, 1), alive=True)
    host.stop()
    calls = show(host, tables, f"SIGKILL {'right after the act' if acted else 'as the first statement of run'}", 1)
    check(host, calls)
    (incident,) = host.incidents()
    requests = {one.request.action: one for one in host.requests()}
    assert requests[first].result is not None
    assert requests[first].result.facts["interrupted"] is True
    assert incident.state is IncidentState.RESOLVED
    if acted:
        assert requests[first].state is StepState.PROVED
        assert host.jobs() == {f"act {requests[first].request.id}": 1}
    else:
        assert requests[first].state is StepState.FAILED
        assert requests["restart"].state is StepState.PROVED
        assert host.jobs() == {"restart s1.service": 1}


def fragile(world: MakeWorld, faults: int, seed: int) -> World:
    """A host whose agent will be killed `faults` times, with a service and a fault for each."""
    chance = random.Random(seed)
    return world(
        policies={"10-test": POLICY.format(first="chaos-act")},
        plugins={"chaos": CHAOS.replace('request.facts["sick"]', 'int(request.subject.split(":")[2], 16) % 2')},
        services=faults,
        main=BUDGETS,
        rate=RATE,
        pause=lambda: chance.uniform(0.0, 0.05),
    )


def live_and_die(host: World, kills: int, seed: int) -> None:
    """Kill the agent at random moments of its life, its start included, while faults come in; let it end all."""
    host.settle_in()
    for number, moment in enumerate(moments(seed, kills, 0.0, LONGEST_LIFE), start=1):
        if not host.alive:
            host.spawn()
        time.sleep(moment / 2)
        host.kernel.print(xid(number))
        time.sleep(moment / 2)
        assert host.kill() == -signal.SIGKILL, host.log()[-3000:]
    host.start()
    host.until(lambda: ended(host, kills), 40 + 2 * kills, alive=True)
    host.stop()


def killed_at_random(world: MakeWorld, tables: list[str], kills: int, seed: int) -> None:
    """Two hosts side by side, because agents that are being killed mostly wait."""
    share = {seed: kills - kills // 2, seed + 1: kills // 2}
    hosts = {one: fragile(world, count, one) for one, count in share.items()}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: live_and_die(hosts[one], share[one], one), hosts))
    for one, host in hosts.items():
        calls = show(host, tables, f"SIGKILL at {share[one]} random moments (seed {one})", share[one])
        check(host, calls)
        found = Counter(incident.subject for incident in host.incidents())
        assert set(found.values()) == {1}, f"found twice: {found}"
        assert len(found) == share[one], "a fault was lost"
        assert sum(calls.values()) > share[one] // 2, "most faults were acted on"
        proved = {request.request.incident for request in host.requests() if request.state is StepState.PROVED}
        for incident in host.incidents():
            assert (incident.state is IncidentState.RESOLVED) == (incident.id in proved), incident


def test_killed_at_random_moments_nothing_is_lost_and_nothing_done_twice(world: MakeWorld, tables: list[str]) -> None:
    killed_at_random(world, tables, 25, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_two_hundred_times_nothing_is_lost_and_nothing_done_twice(world: MakeWorld, tables: list[str]) -> None:
    killed_at_random(world, tables, 200, seed=int(os.environ.get("BANDOG_SEED", "20261130")))
