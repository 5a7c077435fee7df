"""A task that hangs for real: it writes to a frozen file system, and no signal reaches it."""

from __future__ import annotations

from typing import Any

from ..disks import frozen, small_disk
from ..lab import PORT, UNIT, Lab
from ..machine import wait_until
from ..scenario import scenario

DISK = "/srv/weights"
WORKER = "VLLM::Worker"
POLICY = """policy: lab-hung
match: {kind: task.hung}
severity: error
quiet: 5s
resolve: cleared
notify: [oncall]
steps:
  - do: evidence
  - do: restart
    after: 10s
"""
# khungtaskd looks every 5 s for what has not run for 5 s, instead of every 120 s.
SOON = "sysctl -q -w kernel.hung_task_timeout_secs=5 kernel.hung_task_warnings=100"
AS_BEFORE = "sysctl -q -w kernel.hung_task_timeout_secs=120 kernel.hung_task_warnings=10"


def run_of(lab: Lab, unit: str = UNIT) -> str:
    """Return what tells one run of a unit from another: its main pid and invocation."""
    return lab.machine.ssh(f"systemctl show -p MainPID -p InvocationID {unit}")


def wedge(lab: Lab, port: int = PORT) -> int:
    """Let the model server's worker write to the frozen disk; return its pid once it is in D state."""
    pid = int(lab.machine.ssh(f"curl -fsS -m 10 --data {DISK}/part-1 http://127.0.0.1:{port}/wedge"))
    stuck = f"grep -q '^State:.D' /proc/{pid}/status"
    wait_until("the worker is in D state", 30, lambda: lab.machine.status(stuck) == 0)
    return pid


def restart_of(shown: dict[str, Any]) -> dict[str, Any] | None:
    """Return the restart request of an incident, once it has ended."""
    found = [one for one in shown["requests"] if one["request"]["action"] == "restart"]
    return found[0] if found and found[0]["state"] not in ("waiting", "running", "proving") else None


@scenario("a task stuck in D state: named with its unit, the restart ends unkillable and touches nothing")
def unkillable(lab: Lab) -> None:
    vm = lab.machine
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    before, mark = run_of(lab), lab.mark()
    with small_disk(vm, DISK):
        vm.ssh(SOON)
        try:
            with frozen(vm, DISK):
                pid = wedge(lab)
                number = lab.await_incident("lab-hung")["id"]
                ended = wait_until("the restart ends", 60, lambda: restart_of(lab.show(number)))
                shown = lab.show(number)
                assert ended["state"] == "failed" and "unkillable" in ended["why"], ended
                facts = shown["incident"]["facts"]
                assert facts["pid"] == pid and facts["comm"] == WORKER, facts
                assert facts["seconds"] >= 5 and facts["class"] == "frozen", facts
                assert facts["unit"] == UNIT and shown["incident"]["services"] == ["model"], shown
                assert "unkillable" in shown["incident"]["why"], shown["incident"]
                lab.await_mail(f"unkillable: {WORKER}", 30)
                assert lab.jobs(mark) == []
                assert run_of(lab) == before
        finally:
            vm.ssh(AS_BEFORE)
        lab.await_mail("Resolved", 90)
    lab.await_serving()
    assert lab.show(number)["incident"]["state"] == "resolved"
    assert lab.jobs(mark) == [] and run_of(lab) == before
