"""The driver is asked by the shipped unit, through the real binding: what is lost is told, and nothing hangs."""

from __future__ import annotations

import time

from ..gpus import FIFO, MORE, gpus, put_gpus, set_gpus
from ..lab import Lab
from ..machine import wait_until
from ..scenario import scenario
from .adverse import in_d, restarts
from .restart import POLICY, xid

THIRD = "0000:e5:00.0"
STATES = """policy: lab-gpu
match: {kind: ["gpu.*"]}
severity: error
quiet: 1s
resolve: cleared
notify: [oncall]
"""


@scenario("the GPUs are in the status, and one that is lost or missing is told and resolved when it is back")
def lost_and_found(lab: Lab) -> None:
    vm = lab.machine
    put_gpus(vm)
    lab.reset(mode="enforce", more=MORE, policies={"10-lab": POLICY, "20-gpu": STATES})
    wait_until("four GPUs are in the status", 60, lambda: len(gpus(lab)) == 4)
    assert gpus(lab)[THIRD]["serial"] == "1650000000002"
    set_gpus(vm, gpus__2__lost=True)
    lab.await_mail(f"GPU lost.*{THIRD}", 60)
    assert not gpus(lab)[THIRD]["usable"]
    set_gpus(vm, gpus__2__lost=False)
    lab.await_mail("Resolved", 90)
    lab.forget_messages()
    set_gpus(vm, gpus__2__missing=True)
    lab.await_mail(f"GPU missing.*{THIRD}", 120)
    set_gpus(vm, gpus__2__missing=False)
    lab.await_mail("Resolved", 90)
    assert gpus(lab)[THIRD]["usable"]


@scenario("the driver never answers: told within 30 s, one child in D and no second one, everything else goes on")
def hung_driver(lab: Lab) -> None:
    vm = lab.machine
    put_gpus(vm)
    lab.reset(mode="enforce", more=MORE, policies={"10-lab": POLICY, "20-gpu": STATES})
    wait_until("four GPUs are in the status", 60, lambda: len(gpus(lab)) == 4)
    agent, began = lab.main_pid("bandog"), time.monotonic()
    try:
        set_gpus(vm, calls__nvmlDeviceGetCount_v2__d_state=FIFO)
        lab.await_mail("GPU driver hung", 60)
        print(f"       told {time.monotonic() - began:.0f} s after the driver stopped answering")
        time.sleep(70)  # a minute after the first one, another round would be due
        assert in_d(vm, "bandog-nvml") == 1
        pid = lab.main_pid()
        vm.kernel_line(xid(pid))
        lab.await_mail("proved: restart", 120)
        assert lab.main_pid() != pid
        assert lab.main_pid("bandog") == agent
        assert restarts(vm) == 0
    finally:
        set_gpus(vm, calls={})
        vm.ssh(f"timeout 5 sh -c 'echo > {FIFO}'", check=False)
    lab.await_mail("(?s)GPU driver hung.*Resolved", 150)
    wait_until("no child is in D", 30, lambda: in_d(vm, "bandog-nvml") == 0)
