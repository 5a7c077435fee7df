"""The power goes in the middle of a ladder: nothing is done twice, and the incidents go on to their end."""

from __future__ import annotations

from typing import Any

from ..fleet import fault, posts, restarts, service_file, used
from ..lab import PORT, Lab
from ..machine import wait_until
from ..scenario import scenario

# One is being restarted, as its stop takes long, and one has been and loads, when the power goes.
UNIT = """[Unit]
Description=model server of the lab
[Service]
ExecStart=/usr/bin/python3 /opt/lab/model_server.py {port} {load}
ExecStop=/usr/bin/sleep {drain}
TimeoutStopSec=90
[Install]
WantedBy=multi-user.target
"""
LOADS, DRAINS = "m0", "m1"
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
    for number, name, load, drain in ((0, LOADS, 20, 0), (1, DRAINS, 0, 40)):
        vm.put(UNIT.format(port=PORT + number, load=load, drain=drain), f"/etc/systemd/system/lab-{name}.service")
        vm.put(service_file(name), f"/etc/bandog/services.d/{name}.yaml")
    vm.ssh(f"systemctl -q enable --now lab-{LOADS} lab-{DRAINS}; systemctl start bandog")
    for number in range(2):
        lab.await_serving(PORT + number)


def restart_request(lab: Lab, service: str) -> dict[str, Any] | None:
    """Return the one restart request for a service."""
    found = [
        request
        for incident in lab.incidents()
        if incident["policy"] == "lab-crash"
        for request in lab.show(incident["id"])["requests"]
        if request["request"]["action"] == "restart" and request["request"]["service"] == service
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def break_it(lab: Lab, service: str, state: str) -> str:
    """Let the GPU of a service fail, wait until its restart is in `state`, and return the request's id."""
    lab.machine.kernel_line(fault(service, lab.main_pid(f"lab-{service}")))

    def there() -> str | None:
        found = restart_request(lab, service)
        return found["request"]["id"] if found and found["state"] == state else None

    return wait_until(f"the restart of {service} is {state}", 60, there)


@scenario("the power goes during a restart and during a proof: neither is done again, both incidents end resolved")
def power_cycle(lab: Lab) -> None:
    vm = lab.machine
    begin(lab)
    try:
        mark = lab.mark()
        asked = {LOADS: break_it(lab, LOADS, "proving"), DRAINS: break_it(lab, DRAINS, "running")}
        vm.ssh("journalctl --sync")
        once = {f"lab-{LOADS}.service": 1, f"lab-{DRAINS}.service": 1}
        spent = used(lab)
        states = [(restart_request(lab, one) or {}).get("state") for one in (LOADS, DRAINS)]
        assert states == ["proving", "running"], states
        boot = vm.boot_id()
        vm.power_cycle(clock="utc")
        assert vm.boot_id() != boot
        wait_until(
            "both incidents are resolved",
            180,
            lambda: [one["state"] for one in lab.incidents() if one["policy"] == "lab-crash"] == ["resolved"] * 2,
            every=2,
        )
        for name, request in asked.items():
            ended = restart_request(lab, name)
            assert ended and ended["request"]["id"] == request and ended["state"] == "proved", ended
            print(f"       request {request}, {name}: {restarts(lab, mark)[f'lab-{name}.service']} restart job")
        # The manager's own record, of both boots.
        assert restarts(lab, mark) == once, restarts(lab, mark)
        assert used(lab) == spent, (spent, used(lab))
        assert not posts(lab, "did not help"), posts(lab, "did not help")
        assert len(posts(lab, "Resolved")) == 2, lab.hook.messages
    finally:
        vm.ssh(
            f"systemctl -q disable lab-{LOADS} lab-{DRAINS}; rm -f /etc/systemd/system/lab-*; "
            "systemctl daemon-reload; systemctl stop 'lab-*'"
        )
