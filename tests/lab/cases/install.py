"""The .deb on a real systemd: what installing it leaves, and what it must not do."""

from __future__ import annotations

import json

from ..lab import Lab
from ..machine import wait_until
from ..scenario import scenario

SECURITY_LIMIT = 4.0
# systemd calls for a reload when the file is newer than what it has loaded
AGED_UNIT = "touch -d 2020-01-01 /usr/lib/systemd/system/bandog.service"


def reloads(lab: Lab, mark: str) -> list[str]:
    """Return what the manager logged about reloading itself since `mark`."""
    lines = [str(entry.get("MESSAGE", "")) for entry in lab.manager_log(mark)]
    # systemd 257 logs its end too: "Reloading finished in 2133 ms."
    return [line for line in lines if line.startswith("Reloading") and "finished" not in line]


def install(lab: Lab) -> str:
    """Install, or install again, the .deb that lies in the machine; return what dpkg printed."""
    return lab.machine.ssh("DEBIAN_FRONTEND=noninteractive dpkg -i /root/bandog.deb 2>&1")


@scenario("the .deb installs without a reload of systemd and the unit is active in observe", smoke=True)
def installs(lab: Lab) -> None:
    vm = lab.machine
    vm.put(lab.deb, "/root/bandog.deb")
    mark = lab.mark()
    install(lab)
    assert reloads(lab, mark) == []
    assert vm.ssh("systemctl is-active bandog").strip() == "active"
    assert vm.ssh("systemctl is-enabled bandog").strip() == "enabled"
    status = json.loads(lab.bandog("status", "--json"))
    assert status["mode"] == "observe", status


@scenario("the unit scores at most 4.0 in systemd-analyze security", smoke=True)
def is_hardened(lab: Lab) -> None:
    out = lab.machine.ssh("systemd-analyze security --no-pager bandog.service | tail -n 1")
    score = float(out.split(":", 1)[1].split()[0])
    print(f"       {out.strip()}")
    assert score <= SECURITY_LIMIT, out


@scenario("directories, man pages, schemas and completion are where they belong", smoke=True)
def files_are_there(lab: Lab) -> None:
    vm = lab.machine
    modes = vm.ssh("stat -c '%a %n' /etc/bandog/credentials /var/lib/bandog /run/bandog /etc/bandog/policies.d")
    assert modes.split("\n")[:4] == [
        "700 /etc/bandog/credentials",
        "700 /var/lib/bandog",
        "755 /run/bandog",
        "755 /etc/bandog/policies.d",
    ], modes
    vm.ssh(
        "ls /usr/share/man/man8/bandog.8.gz /usr/share/man/man5/bandog.yaml.5.gz "
        "/usr/share/bash-completion/completions/bandog /usr/share/zsh/vendor-completions/_bandog "
        "/usr/share/fish/vendor_completions.d/bandog.fish /usr/share/bandog/schema/policy.json"
    )
    vm.ssh("bandog check")
    vm.ssh("systemctl stop bandog && test -d /run/bandog && systemctl start bandog")


@scenario("an upgrade keeps the state and restarts the agent; systemd is reloaded only for our own unit", smoke=True)
def upgrades(lab: Lab) -> None:
    vm = lab.machine
    lab.bandog("hold", "2h", "--reason", "kept-over-the-upgrade")
    before = lab.main_pid("bandog")
    mark = lab.mark()
    install(lab)
    assert reloads(lab, mark) == []
    assert lab.main_pid("bandog") not in (0, before)
    wait_until("the hold is still there", 30, lambda: "kept-over-the-upgrade" in lab.bandog("status", "--json"))
    # an older text of our unit is loaded: now a reload is needed
    vm.ssh(f"{AGED_UNIT}; systemctl daemon-reload")
    mark = lab.mark()
    install(lab)
    assert len(reloads(lab, mark)) == 1
    lab.bandog("release")


@scenario("an upgrade does not reload systemd while a container would lose its GPU, and prints the command")
def upgrade_spares_containers(lab: Lab) -> None:
    vm = lab.machine
    vm.ssh(
        f"mknod -m 666 /dev/nvidia0 c 195 0; {AGED_UNIT}; systemctl daemon-reload; "
        "systemd-run -q --scope --unit=docker-lab.scope -p DevicePolicy=closed sleep 600 >/dev/null 2>&1 & sleep 1"
    )
    wait_until("the container runs", 20, lambda: vm.status("systemctl is-active -q docker-lab.scope") == 0)
    mark = lab.mark()
    printed = install(lab)
    assert reloads(lab, mark) == []
    assert "systemctl daemon-reload && systemctl restart bandog" in printed, printed
    assert "docker-lab.scope" in printed
    assert vm.ssh("systemctl is-active bandog").strip() == "active"
    vm.ssh("systemctl stop docker-lab.scope; rm /dev/nvidia0; systemctl daemon-reload; systemctl restart bandog")
