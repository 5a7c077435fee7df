"""A fault that keeps coming back: the service's budget, one page, the host's budget, the breaker."""

from __future__ import annotations

import json
from typing import Any

from ..lab import PORT, Lab, body
from ..machine import wait_until
from ..scenario import scenario

POLICY = """policy: lab-budget
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 1s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 1s}
  - do: notify
    with: {to: [oncall], urgent: true, text: "the page: $subject needs you"}
"""
SERVICES = ("m0", "m1", "m2", "m3")
# The longest wait between two acts on one service here is the fourth one of the backoff, 80 s.
SERVING_AGAIN = 200


def gpu(number: int) -> str:
    """Return the GPU whose fault kills the model server of that number."""
    return f"0000:a{number}:00"


def crash(lab: Lab, *numbers: int, seen: bool = False) -> None:
    """Let these model servers die of an Xid, once the agent has seen their processes (it looks every 5 s)."""
    if not seen:
        lab.machine.ssh("sleep 6")
    for number in numbers:
        pid = lab.main_pid(f"lab-m{number}.service")
        line = f"NVRM: Xid (PCI:{gpu(number)}): 94, pid={pid}, name=python3, Contained: SM (0x1)"
        lab.machine.ssh(
            f"curl -s -m 5 -d '' http://127.0.0.1:{PORT + number}/die; echo '{line}' > /proc/bandog-lab", check=False
        )


def round_of(lab: Lab, *numbers: int) -> None:
    """Crash these and wait until all of them serve again and their incidents have ended."""
    crash(lab, *numbers)
    for number in numbers:
        lab.await_serving(PORT + number, SERVING_AGAIN)
    wait_until(
        f"the incidents of {numbers} have ended",
        90,
        lambda: not {f"gpu:{gpu(number)}.0" for number in numbers} & open_subjects(lab) or None,
        every=1,
    )


def open_subjects(lab: Lab) -> set[str]:
    """Return the subjects of the incidents that have not ended."""
    return {one["subject"] for one in lab.incidents() if one["state"] in ("open", "stuck", "unresolved")}


def status(lab: Lab) -> dict[str, Any]:
    """Return what `bandog status --json` says."""
    found: dict[str, Any] = json.loads(lab.bandog("status", "--json"))
    return found


def restarts(lab: Lab, mark: str, name: str) -> int:
    """Return how often systemd was asked to start or restart a service's unit since `mark`."""
    return len([kind for kind, _ in lab.jobs(mark, f"lab-{name}.service") if kind in ("start", "restart")])


def pages(lab: Lab, number: int) -> int:
    """Return how many mails page somebody about a GPU."""
    return len([one for one in lab.mail.messages if f"the page: gpu:{gpu(number)}.0" in body(one)])


@scenario("a unit that crashes ten times is restarted five times, then EXHAUSTED and one page; four use up the host")
def budgets(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY}, services=SERVICES, gpus="")
    mark = lab.mark()
    for _ in range(4):
        round_of(lab, 0, 1, 2, 3)
    round_of(lab, 0, 1, 2)
    assert [restarts(lab, mark, name) for name in SERVICES] == [5, 5, 5, 4]
    for _ in range(5):
        crash(lab, 0, seen=True)
    lab.await_mail(f"the page: gpu:{gpu(0)}.0", 60)
    exhausted = next(one for one in lab.incidents() if one["subject"] == f"gpu:{gpu(0)}.0")
    ends = [(one["request"]["action"], one["state"]) for one in lab.show(exhausted["id"])["requests"]]
    assert ends[0] == ("restart", "exhausted"), ends
    assert restarts(lab, mark, "m0") == 5
    assert pages(lab, 0) == 1
    # the twentieth act is the last one of the day
    round_of(lab, 3)
    assert restarts(lab, mark, "m3") == 5
    crash(lab, 1, 2)
    wait_until("the breaker trips", 60, lambda: status(lab)["breaker"])
    assert [restarts(lab, mark, name) for name in SERVICES] == [5, 5, 5, 5]
    tripped = [one for one in lab.incidents() if one["kind"] == "agent.breaker-tripped"]
    assert len(tripped) == 1, tripped


def assert_unchanged(lab: Lab, used: dict[str, int]) -> None:
    """The breaker is open, and as much of each budget is used as before."""
    now = status(lab)
    assert now["breaker"], now
    after = {one["key"]: one["used"] for one in now["budgets"]}
    assert after == used, (after, used)


@scenario("the breaker survives a power cycle, a clock in the year 2000 frees no budget, `bandog rearm` ends it")
def breaker_survives(lab: Lab) -> None:
    vm = lab.machine
    used = {one["key"]: one["used"] for one in status(lab)["budgets"]}
    seconds = vm.power_cycle(clock="2000-01-01")
    print(f"       power cycle {seconds:.1f} s; the clock says {vm.ssh('date +%F').strip()}", flush=True)
    try:
        wait_until("the agent is up", 60, lambda: vm.status("systemctl is-active -q bandog") == 0)
        assert_unchanged(lab, used)
        # systemd itself has set the clock to the day on which it was built
        vm.ssh("date -s '2000-01-01 00:00:00' >/dev/null; systemctl restart bandog")
        assert_unchanged(lab, used)
    finally:
        vm.set_clock()
    vm.ssh("systemctl restart bandog")
    assert_unchanged(lab, used)
    lab.bandog("rearm")
    assert not status(lab)["breaker"]
