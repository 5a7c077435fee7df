"""The power goes in the middle of a ladder: nothing is done twice, and the incidents go on to their end."""

from __future__ import annotations

from collections import Counter

from ..fleet import fault, of_policy, posts, service_file, used
from ..lab import PORT, Lab
from ..machine import wait_until
from ..scenario import scenario

# When the power goes, one has been restarted and loads; the other is being restarted, as its stop takes long.
LOADS, DRAINS = "m0", "m1"
UNIT = """[Unit]
Description=model server of the lab
[Service]
ExecStart=/usr/bin/python3 /opt/lab/model_server.py {port} {load}
ExecStop=/usr/bin/sleep {drain}
TimeoutStopSec=90
[Install]
WantedBy=multi-user.target
"""
POLICY = """policy: lab-crash
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 5s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 2s, timeout: 3m}
  - do: notify
    with: {to: [oncall], urgent: true, text: "the restart of $service did not help"}
"""


def begin(lab: Lab) -> None:
    """Two services whose units come back at a boot, as real ones do."""
    vm = lab.machine
    lab.reset(mode="enforce", policies={"10-lab": POLICY}, services=(), start=False)
    for number, name, load, drain in ((0, LOADS, 30, 0), (1, DRAINS, 0, 60)):
        vm.put(UNIT.format(port=PORT + number, load=load, drain=drain), f"/etc/systemd/system/lab-{name}.service")
        vm.put(service_file(name), f"/etc/bandog/services.d/{name}.yaml")
    vm.ssh(f"systemctl -q enable --now lab-{LOADS} lab-{DRAINS}; sync; systemctl start bandog")
    for number in range(2):
        lab.await_serving(PORT + number)


def break_it(lab: Lab, service: str, shows: str) -> None:
    """Let a service's GPU fail and wait until systemd shows what its restart has come to."""
    pid = lab.main_pid(f"lab-{service}")
    lab.machine.kernel_line(fault(service, pid))

    def come() -> bool:
        state = lab.machine.ssh(f"systemctl show -p MainPID -p ActiveState lab-{service}")
        return shows in state and (shows != "=active" or f"MainPID={pid}\n" not in state)

    wait_until(f"{service} is{shows}", 60, come)


@scenario("the power goes during a restart and during a proof: neither is done again, both incidents end resolved")
def power_cycle(lab: Lab) -> None:
    vm = lab.machine
    begin(lab)
    try:
        mark = lab.mark()
        break_it(lab, LOADS, "=active")
        break_it(lab, DRAINS, "=deactivating")
        before = lab.status()
        asked = {one["request"]: one["state"] for one in before["waiting"]}
        assert asked == {"1.1": "proving", "2.1": "running"}, before["waiting"]
        spent = {one["key"]: one["used"] for one in before["budgets"]}
        boot = vm.boot_id()
        vm.ssh("journalctl --sync")
        vm.power_cycle(clock="utc")
        assert vm.boot_id() != boot
        wait_until("both are told as resolved", 120, lambda: len(posts(lab, "Resolved")) == 2)
        # From the manager's own record, of both boots. The job that the power cut short has told only of its stop.
        counted = Counter(unit for kind, unit in lab.jobs(mark) if kind in ("stop", "restart"))
        for number, name in ((1, LOADS), (2, DRAINS)):
            requests = lab.show(number)["requests"]
            assert [(one["request"]["id"], one["state"]) for one in requests] == [(f"{number}.1", "proved")], requests
            print(f"       request {number}.1, {asked[f'{number}.1']}: {counted[f'lab-{name}.service']} act")
        assert counted == {f"lab-{LOADS}.service": 1, f"lab-{DRAINS}.service": 1}, counted
        assert used(lab) == spent, (spent, used(lab))
        assert [one["state"] for one in of_policy(lab, "lab-crash")] == ["resolved"] * 2
        assert not posts(lab, "did not help"), posts(lab, "did not help")
    finally:
        vm.ssh(
            f"systemctl -q disable lab-{LOADS} lab-{DRAINS}; rm -f /etc/systemd/system/lab-*; "
            "systemctl daemon-reload; systemctl stop 'lab-*'"
        )
