"""Plugins of others: the example in both its forms, and three that misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ..images import LAB, PROJECT
from ..lab import Lab
from ..machine import wait_until
from ..scenario import scenario
from .restart import POLICY, steps_of, xid

EXAMPLE = PROJECT / "packaging/example-plugin"
BAD = LAB / "plugins"


def example_policy() -> str:
    """Return the example's policy with a shorter time of quiet."""
    return (EXAMPLE / "50-coolant.yaml").read_text().replace("quiet: 10m", "quiet: 3s")


def reports(lab: Lab) -> dict[str, dict[str, str]]:
    """Return what became of each plugin, by name."""
    return {one["name"]: one for one in map(json.loads, lab.bandog("plugins", "--json").splitlines())}


def pump(lab: Lab, number: int) -> None:
    """Let a pump stop; the example switches it on and proves it."""
    lab.machine.ssh("rm -f /run/bandog/pump")
    lab.machine.kernel_line(f"coolant pump {number} stopped")
    lab.await_mail("Resolved", 60)
    shown = lab.show(lab.await_incident("coolant-pump")["id"])
    assert shown["incident"]["subject"] == f"pump:{number}"
    assert steps_of(shown) == [("switch-on", "proved")], shown["requests"]
    assert lab.machine.ssh("cat /run/bandog/pump") == "on"


@scenario("the example plugin from plugins.d: finding, policy, action, proof")
def example_as_file(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"50-coolant": example_policy()}, plugins={"coolant": EXAMPLE / "coolant.py"})
    assert reports(lab)["coolant"]["state"] == "loaded"
    pump(lab, 1)


@scenario("the example plugin as an entry point does the same")
def example_as_entry_point(lab: Lab) -> None:
    vm = lab.machine
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
                *("--disable-pip-version-check", "-w", place, str(EXAMPLE)),
            ],
            check=True,
        )
        wheel = next(Path(place).glob("*.whl"))
        vm.put(wheel, f"/root/{wheel.name}")
    site = vm.ssh("echo /usr/lib/bandog/lib/python3*/site-packages").strip()
    vm.ssh(f"python3 -m zipfile -e /root/{wheel.name} {site}")
    try:
        lab.reset(mode="enforce", policies={"50-coolant": example_policy()})
        assert reports(lab)["coolant"]["state"] == "loaded", reports(lab)
        pump(lab, 2)
    finally:
        vm.ssh(f"rm -rf {site}/coolant.py {site}/__pycache__/coolant.* {site}/bandog_coolant-*")


@scenario("a plugin that fails at import, one in feed and one that blocks for 60 s: named, and the agent goes on")
def bad_plugins(lab: Lab) -> None:
    names = ("bad-import", "bad-feed", "bad-block")
    lab.reset(
        mode="enforce",
        policies={"10-lab": POLICY},
        plugins={name.replace("-", "_"): BAD / f"{name.replace('-', '_')}.py" for name in names},
    )
    agent = lab.main_pid("bandog")
    assert reports(lab)["bad-import"]["state"] == "broken", reports(lab)
    lab.machine.kernel_line("lab bad feed", "lab bad block")
    wait_until(
        "all three are reported broken",
        60,
        lambda: all(reports(lab).get(name, {}).get("state") == "broken" for name in names),
    )
    pid = lab.main_pid()
    lab.machine.kernel_line(xid(pid))
    lab.await_mail("Resolved: restart", 120)
    assert lab.main_pid() != pid
    assert lab.main_pid("bandog") == agent
    told = {one["subject"] for one in lab.incidents() if one["kind"] == "agent.plugin-broken"}
    assert told == {f"plugin:{name}" for name in names}, told


@scenario("a plugin that ends the whole agent at a line is left out and named after the second time")
def deadly_plugin(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY}, plugins={"bad_exit": BAD / "bad_exit.py"})
    lab.machine.kernel_line("lab bad exit")
    wait_until("it is reported broken", 90, lambda: reports(lab).get("bad-exit", {}).get("state") == "broken" or None)
    assert int(lab.machine.ssh("systemctl show -P NRestarts bandog")) == 2
    agent, pid = lab.main_pid("bandog"), lab.main_pid()
    lab.machine.kernel_line("lab bad exit", xid(pid))
    lab.await_mail("Resolved: restart", 120)
    assert lab.main_pid() != pid
    assert lab.main_pid("bandog") == agent
    told = {one["subject"] for one in lab.incidents() if one["kind"] == "agent.plugin-broken"}
    assert told == {"plugin:bad-exit"}, told
