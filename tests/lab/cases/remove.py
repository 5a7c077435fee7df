"""Removing the .deb: managed units go on, and a purge leaves nothing."""

from __future__ import annotations

from ..lab import UNIT, Lab
from ..scenario import scenario
from .install import install, reloads


@scenario("removing leaves the managed unit running, a purge leaves no file of ours", smoke=True)
def removes(lab: Lab) -> None:
    vm = lab.machine
    lab.reset()
    serving = lab.main_pid(UNIT)
    mark = lab.mark()
    vm.ssh("dpkg -r bandog 2>&1")
    vm.ssh("test -d /var/lib/bandog && test -e /etc/bandog/bandog.yaml")
    install(lab)
    assert vm.ssh("systemctl is-active bandog").strip() == "active"
    printed = vm.ssh("dpkg -P bandog 2>&1")
    assert reloads(lab, mark) == []
    left = vm.ssh("ls -d /var/lib/bandog /etc/bandog /run/bandog /usr/lib/bandog /etc/default/bandog 2>/dev/null; true")
    assert left == "", f"left: {left}\n{printed}"
    assert vm.ssh("systemctl list-unit-files --no-legend 'bandog*'; true").strip() == ""
    assert lab.main_pid(UNIT) == serving
    lab.await_serving()
