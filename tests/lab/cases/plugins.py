"""Plugins of other people: the example as a file and as a package, and three that are broken."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from ..fleet import await_post
from ..images import PACKAGING
from ..lab import Lab
from ..scenario import scenario

EXAMPLE = PACKAGING / "example-plugin"
PUMP = "coolant pump 7 stopped"
MOST_LINES = 20
SITE_PACKAGES = "/usr/lib/bandog/lib/python3*/site-packages"

RAISES_AT_IMPORT = 'raise RuntimeError("broken at import")\n'
AT_WORK = """import time
import bandog
class Broken(bandog.LogDetector):
    name, needles, emits = "{name}", (b"the lab asks {name}",), {{"lab.{kind}": {{}}}}
    def feed(self, record):
        {does}
        return ()
@bandog.hookimpl
def register_detectors(register): register(Broken)
"""
RAISES = "raises-in-feed"
BLOCKS = "blocks-in-feed"


def plugins(lab: Lab) -> dict[str, dict[str, Any]]:
    """Return what `bandog plugins` tells, by name."""
    return {one["name"]: one for one in map(json.loads, lab.bandog("plugins", "--json").splitlines())}


def switches_the_pump(lab: Lab, origin: str) -> None:
    """The kernel says that a pump stopped; its policy has the plugin switch it on and prove it."""
    vm = lab.machine
    vm.ssh("rm -f /run/bandog/pump; bandog check")
    mine = [one for one in plugins(lab).values() if one["name"] in ("coolant", "switch-on")]
    assert len(mine) == 2 and all(one["state"] == "loaded" and origin in one["origin"] for one in mine), mine
    vm.kernel_line(PUMP)
    number = lab.await_incident("coolant-pump")["id"]
    await_post(lab, "proved: switch-on")
    shown = lab.show(number)
    assert [one["state"] for one in shown["requests"]] == ["proved"], shown["requests"]
    assert shown["incident"]["subject"] == "pump:7" and shown["incident"]["facts"]["pump"] == 7, shown
    assert vm.ssh("cat /run/bandog/pump") == "on"


@scenario("the example plugin as a file: its finding, its policy, its action")
def as_file(lab: Lab) -> None:
    code = (EXAMPLE / "coolant.py").read_text()
    assert len(code.splitlines()) <= MOST_LINES, "the example has grown"
    policy = (EXAMPLE / "50-coolant.yaml").read_text()
    lab.reset(mode="enforce", policies={"50-coolant": policy}, plugins={"coolant": code}, services=())
    switches_the_pump(lab, "/etc/bandog/plugins.d/coolant.py")


@scenario("the example plugin as a package with an entry point does the same")
def as_package(lab: Lab) -> None:
    vm = lab.machine
    lab.reset(
        mode="enforce", policies={"50-coolant": (EXAMPLE / "50-coolant.yaml").read_text()}, services=(), start=False
    )
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["bandog"].items())
    site = vm.ssh(f"echo {SITE_PACKAGES}").strip()
    info = f"{site}/{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    try:
        # What pip leaves of the wheel.
        vm.put(EXAMPLE / "coolant.py", f"{site}/coolant.py")
        vm.put(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", f"{info}/METADATA")
        vm.put(f"[bandog]\n{points}", f"{info}/entry_points.txt")
        vm.ssh("systemctl start bandog")
        switches_the_pump(lab, "entry point coolant")
    finally:
        vm.ssh(f"rm -rf {info} {site}/coolant.py")


@scenario("plugins that raise at import, raise at work or block for 60 s: each is named, the agent goes on")
def broken(lab: Lab) -> None:
    vm = lab.machine
    lab.reset(
        services=(),
        plugins={
            "raises_at_import": RAISES_AT_IMPORT,
            "raises_in_feed": AT_WORK.format(name=RAISES, kind="raised", does='raise ValueError("broken at work")'),
            "blocks_in_feed": AT_WORK.format(name=BLOCKS, kind="blocked", does="time.sleep(60)"),
        },
    )
    run = vm.ssh("systemctl show -p MainPID -p NRestarts bandog")
    vm.kernel_line(
        f"the lab asks {RAISES}", f"the lab asks {BLOCKS}", "NVRM: Xid (PCI:0000:e5:00): 63, Row remapper: x"
    )
    # The line behind theirs is read within seconds, not after a minute.
    await_post(lab, "Xid 63")
    for name in ("raises-at-import", RAISES, BLOCKS):
        await_post(lab, name)
    told = plugins(lab)
    reasons = {"raises-at-import": "broken at import", RAISES: "after it failed", BLOCKS: "after it failed"}
    for name, why in reasons.items():
        assert told[name]["state"] == "broken" and why in told[name]["why"], told[name]
    assert told["xid"]["state"] == "loaded", told["xid"]
    subjects = {one["subject"] for one in lab.incidents() if one["policy"] == "agent-plugin-broken"}
    assert subjects == {f"plugin:{name}" for name in reasons}, subjects
    assert vm.ssh("systemctl show -p MainPID -p NRestarts bandog") == run
