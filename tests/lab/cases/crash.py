"""The agent is killed at the worst moments, and the power is cut in the middle of a ladder."""

from __future__ import annotations

from collections import Counter

from ..images import LAB
from ..lab import Lab
from ..machine import wait_until
from ..scenario import scenario
from .budgets import status
from .restart import steps_of

LADDER = """policy: lab-bell
match: {kind: lab.bell}
severity: error
quiet: 3s
notify: [oncall]
steps:
  - do: strike
    with: {die: before}
  - do: strike
    with: {die: after}
"""
SLOW = """policy: lab-bell
match: {kind: lab.bell}
severity: error
quiet: 3s
notify: [oncall]
steps:
  - do: strike
    with: {slow: 60}
"""


def strikes(lab: Lab) -> Counter[str]:
    """Return how often each request was carried out, as the action itself counted it."""
    return Counter(lab.machine.ssh("cat /var/lib/bandog/strikes 2>/dev/null; true").split())


def print_table(lab: Lab, number: int) -> None:
    """Print each request of an incident with the number of its acts."""
    done = strikes(lab)
    for one in lab.show(number)["requests"]:
        name = one["request"]["id"]
        print(f"       request {name:6} {one['state']:10} acts {done[name]}  {one['why']}")


@scenario("killed before and right after the act: never twice, the ladder goes on, budgets are intact")
def killed_around_the_act(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-bell": LADDER}, plugins={"strike": LAB / "plugins/strike.py"}, services=())
    lab.machine.kernel_line("lab bell 1")
    lab.await_mail("Resolved", 120)
    number = lab.await_incident("lab-bell")["id"]
    print_table(lab, number)
    assert steps_of(lab.show(number)) == [("strike", "failed"), ("strike", "proved")]
    assert strikes(lab) == {f"{number}.2": 1}
    host = next(one for one in status(lab)["budgets"] if one["key"] == "host")
    assert host["used"] == 2, host
    assert int(lab.machine.ssh("systemctl show -P NRestarts bandog")) == 2


@scenario("the power is cut while an act runs: done once, its proof and the incident go on after the boot")
def power_cut(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-bell": SLOW}, plugins={"strike": LAB / "plugins/strike.py"}, services=())
    vm = lab.machine
    before = vm.boot_id()
    vm.kernel_line("lab bell 2")
    wait_until("the act is under way", 60, lambda: strikes(lab) or None)
    number = lab.await_incident("lab-bell")["id"]
    print(f"       power cycle {vm.power_cycle():.1f} s")
    assert vm.boot_id() != before
    wait_until("the incident is resolved", 90, lambda: lab.show(number)["incident"]["state"] == "resolved" or None)
    print_table(lab, number)
    assert strikes(lab) == {f"{number}.1": 1}
    assert steps_of(lab.show(number)) == [("strike", "proved")]
    host = next(one for one in status(lab)["budgets"] if one["key"] == "host")
    assert host["used"] == 1, host
    lab.await_mail("Resolved", 60)
