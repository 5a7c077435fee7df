"""Budgets: a unit that keeps crashing, four of them, the breaker, and a clock that has lost its battery."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..lab import PORT, Lab
from ..machine import wait_until
from ..scenario import scenario

NAMES = ("m0", "m1", "m2", "m3")
POLICY = """policy: lab-crash
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 1s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 1s}
"""
SERVICE = """service: {name}
unit: lab-{name}.service
gpus: ["{gpu}.0"]
ready: {{http: "http://127.0.0.1:{port}/health"}}
"""
# Five restarts of the first unit and three of each of the others are the whole of the host's budget.
BUDGETS = "budgets: {restart: 5 per 1h, host: 14 per 24h}\n"
FIRST_ROUNDS = 3
PAGE = "a person has to look"
DISARMED = "has disarmed itself"


def gpu(name: str) -> str:
    """Return the address of the one GPU of a service, as the driver prints it."""
    return f"0000:{NAMES.index(name) + 1:02x}:00"


def crash(lab: Lab, *names: str) -> None:
    """Let the units' processes die of a GPU fault that the kernel reports; a unit that is down starts first."""
    down = " ".join(f"lab-{name}" for name in names)
    lab.machine.ssh(f"systemctl reset-failed {down}; systemctl start {down}")
    for name in names:
        lab.await_serving(PORT + NAMES.index(name))
    for name in names:
        line = f"NVRM: Xid (PCI:{gpu(name)}): 94, pid='$pid', name=python3, Contained: SM (0x1). RST: No, D-RST: No"
        lab.machine.ssh(
            f"pid=$(systemctl show -P MainPID lab-{name}); echo '{line}' > /proc/bandog-lab; kill -KILL $pid"
        )


def of_policy(lab: Lab, policy: str = "lab-crash") -> list[dict[str, Any]]:
    """Return the incidents of a policy, the oldest first."""
    return [one for one in reversed(lab.incidents()) if one["policy"] == policy]


def await_resolved(lab: Lab, count: int) -> None:
    """Wait until so many crashes were answered by a restart that was proved."""
    wait_until(
        f"{count} incidents are resolved",
        200,
        lambda: sum(one["state"] == "resolved" for one in of_policy(lab)) == count,
        every=2,
    )


def posts(lab: Lab, words: str) -> list[str]:
    """Return the texts at the webhook with these words."""
    return [one["message"] for one in lab.hook.messages if words in one["message"]]


def await_post(lab: Lab, words: str) -> None:
    """Wait until the webhook has got a text with these words."""
    wait_until(f"a post with {words!r}; so far {lab.hook.messages}", 60, lambda: posts(lab, words))


def used(lab: Lab) -> dict[str, int]:
    """Return how much of each budget is used, as `bandog status` has it."""
    return {one["key"]: one["used"] for one in lab.status()["budgets"]}


def restarts(lab: Lab, mark: str) -> Counter[str]:
    """Return how often systemd was asked to restart each unit since `mark`."""
    return Counter(unit for kind, unit in lab.jobs(mark) if kind == "restart")


def begin(lab: Lab) -> None:
    """Four services with a GPU and a port each."""
    lab.reset(mode="enforce", more=BUDGETS, policies={"10-lab": POLICY}, services=NAMES, start=False)
    for number, name in enumerate(NAMES):
        text = SERVICE.format(name=name, gpu=gpu(name), port=PORT + number)
        lab.machine.put(text, f"/etc/bandog/services.d/{name}.yaml")
    lab.machine.ssh("bandog check && systemctl start bandog")


def crash_until_exhausted(lab: Lab, mark: str) -> None:
    """The first unit crashes ten times, the others three times beside it."""
    done = 0
    for number in range(5):
        names = NAMES if number < FIRST_ROUNDS else NAMES[:1]
        crash(lab, *names)
        done += len(names)
        await_resolved(lab, done)
    for _ in range(5):
        crash(lab, NAMES[0])
    last = wait_until(
        "the budget of the unit is used up",
        30,
        lambda: next((one for one in of_policy(lab) if one["state"] == "stuck"), None),
    )
    shown = lab.show(last["id"])
    assert [one["state"] for one in shown["requests"]] == ["exhausted"], shown["requests"]
    assert len(of_policy(lab)) == done + 1, of_policy(lab)
    assert restarts(lab, mark)["lab-m0.service"] == 5
    await_post(lab, PAGE)
    assert len(posts(lab, PAGE)) == 1, posts(lab, PAGE)


def trip(lab: Lab, mark: str) -> None:
    """The next crash of another unit is over the host's budget: the breaker trips, and trips once."""
    before = restarts(lab, mark)
    assert sum(before.values()) == 14, before
    for name in NAMES[1:]:
        crash(lab, name)
        await_post(lab, f"would have restarted {name}")
    assert restarts(lab, mark) == before
    await_post(lab, DISARMED)
    assert len(posts(lab, DISARMED)) == 1 and len(of_policy(lab, "agent-disarmed")) == 1, posts(lab, DISARMED)


@scenario("ten crashes: five restarts and one page; four such units: the breaker trips once, until it is armed again")
def budgets(lab: Lab) -> None:
    vm = lab.machine
    begin(lab)
    mark = lab.mark()
    crash_until_exhausted(lab, mark)
    trip(lab, mark)
    spent = used(lab)
    vm.ssh("journalctl --sync")
    print(f"       booted with the clock in {vm.ssh('date +%F').strip()}", end="")
    vm.power_cycle(clock="2000-01-01")
    try:
        print(f" and then in {vm.ssh('date +%F').strip()}", flush=True)
        # A clock in the past frees nothing, and the breaker is where it was.
        assert lab.status()["breaker"] and used(lab) == spent, lab.status()
        mark = lab.mark()
        lab.put_units(NAMES)
        lab.forget_messages()
        crash(lab, "m1")
        await_post(lab, "would have restarted m1")
        assert lab.jobs(mark, "lab-m1.service")[1:] == [], lab.jobs(mark)
        assert not posts(lab, DISARMED), posts(lab, DISARMED)
        vm.ssh("bandog rearm")
        # Armed again: the host has a fresh budget, the first unit has none before its hour is over.
        crash(lab, "m2")
        wait_until("it acts again", 120, lambda: restarts(lab, mark)["lab-m2.service"] == 1, every=2)
        crash(lab, "m0")
        await_post(lab, "restart of m0 not done")
        assert restarts(lab, mark) == {"lab-m2.service": 1}, restarts(lab, mark)
        assert lab.status()["breaker"] == "", lab.status()
    finally:
        vm.set_clock()
