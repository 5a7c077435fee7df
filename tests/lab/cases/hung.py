"""A real task in D state: a worker of the model server writes to a frozen file system."""

from __future__ import annotations

from ..lab import PORT, UNIT, Lab
from ..machine import Machine, wait_until
from ..scenario import scenario
from .restart import steps_of

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
    with: {settle: 2s}
  - do: notify
    with: {to: [oncall], urgent: true, text: "$comm (pid $pid) is stuck: $class"}
"""
WORKER = "VLLM::Worker"
DISK = "/opt/lab/disk.img"
PLACE = "/mnt/lab"


def freeze(vm: Machine) -> None:
    """Mount a small file system of its own and freeze it; the kernel reports a hung task after 5 s."""
    vm.ssh(
        f"sysctl -q kernel.hung_task_timeout_secs=5 kernel.hung_task_warnings=-1; mkdir -p {PLACE}; "
        f"truncate -s 64M {DISK} && mkfs.ext4 -q -F {DISK} && mount -o loop {DISK} {PLACE} && fsfreeze -f {PLACE}"
    )


def thaw(vm: Machine) -> None:
    """End the freeze."""
    vm.ssh(f"fsfreeze -u {PLACE}; sysctl -q kernel.hung_task_timeout_secs=120", check=False)


def wedge(lab: Lab) -> int:
    """Let a worker of the model server write to the frozen file system; return its pid once it is in D."""
    pid = int(lab.machine.ssh(f"curl -fsS -m 10 -d {PLACE}/weights http://127.0.0.1:{PORT}/wedge"))
    wait_until(
        "the worker is in D",
        30,
        lambda: lab.machine.ssh(f"cut -d' ' -f3 /proc/{pid}/stat", check=False).strip() == "D",
    )
    return pid


@scenario("a task stuck in D: found, the restart ends unkillable with the unit untouched, resolved after the thaw")
def frozen_file_system(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm = lab.machine
    serving = lab.main_pid()
    mark = lab.mark()
    freeze(vm)
    try:
        pid = wedge(lab)
        number = lab.await_incident("lab-hung", 60)["id"]
        wait_until("the restart has ended", 60, lambda: ("restart", "failed") in steps_of(lab.show(number)))
        shown = lab.show(number)
        facts = shown["incident"]["facts"]
        assert facts["comm"] == WORKER
        assert facts["pid"] == pid
        assert facts["seconds"] >= 1
        assert facts["class"] == "frozen", facts
        assert facts["unit"] == UNIT
        restart = next(one for one in shown["requests"] if one["request"]["action"] == "restart")
        assert "unkillable" in restart["why"] or "unkillable" in str(restart["result"]), restart
        lab.await_mail("unkillable", 30)
        assert lab.jobs(mark) == []
        assert lab.main_pid() == serving
    finally:
        thaw(vm)
    lab.await_serving()
    wait_until(
        "the incident resolves", 120, lambda: lab.show(number)["incident"]["state"] == "resolved" or None, every=2
    )
    assert lab.jobs(mark) == []
    lab.await_mail("Resolved", 30)
    vm.ssh(f"umount {PLACE}")
