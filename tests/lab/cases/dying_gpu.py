"""A card dies slowly under a real unit: restarted first, relaunched without the card at the second fault."""

from __future__ import annotations

import json

from ..gpus import ENVIRONMENT, FAKEVLLM, STATE, gpus, put_gpus
from ..lab import PORT, Lab
from ..machine import Machine, wait_until
from ..scenario import scenario
from .gpus import THIRD
from .restart import steps_of

UNIT = "lab-vllm.service"
UNIT_TEXT = f"""[Unit]
Description=vLLM of the lab
[Service]
Environment=TP_SIZE=4 FAKENVML_STATE={STATE} FAKEVLLM_LOAD=2
EnvironmentFile=-/run/bandog/env/{UNIT}.env
ExecStart=/usr/bin/python3 {FAKEVLLM} serve qwen --port {PORT} --tensor-parallel-size ${{TP_SIZE}}
TimeoutStopSec=20
"""
SERVICE = f"""service: qwen
unit: {UNIT}
gpus: all
start: {{settle: 1s, timeout: 2m}}
ready: {{http: "http://127.0.0.1:{PORT}/health"}}
canary: {{openai: "http://127.0.0.1:{PORT}"}}
profiles:
  - {{count: 4, env: {{TP_SIZE: "4"}}}}
  - {{count: 2, env: {{TP_SIZE: "2", NAME: "two 'of' \\"four\\""}}}}
"""
POLICY = """policy: lab-dying
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 10m
notify: [oncall]
steps:
  - do: evidence
  - do: restart
    with: {settle: 2s}
  - do: relaunch
    with: {without: $subject, settle: 2s}
"""
MORE = f"plugins: {{gpu: {{environment: {ENVIRONMENT}}}, relaunch: {{environment: {ENVIRONMENT}}}}}\n"


def begin(lab: Lab, mode: str) -> None:
    """Four GPUs, and one server on all of them."""
    vm = lab.machine
    put_gpus(vm)
    lab.reset(mode=mode, more=MORE, policies={"10-lab": POLICY}, services=(), start=False)
    vm.put(SERVICE, "/etc/bandog/services.d/qwen.yaml")
    vm.put(UNIT_TEXT, f"/run/systemd/system/{UNIT}")
    vm.ssh(f"rm -rf /run/bandog/env; systemctl daemon-reload; systemctl start {UNIT}; sync; systemctl start bandog")
    lab.await_serving(seconds=120)
    wait_until("four GPUs are in the status", 60, lambda: len(gpus(lab)) == 4)


def fault(lab: Lab) -> None:
    """The third card reports a contained error of the server."""
    pid = lab.main_pid(UNIT)
    lab.await_seen(pid)
    lab.machine.kernel_line(f"NVRM: Xid (PCI:{THIRD[:-2]}): 94, pid={pid}, name=python3, Contained: SM (0x1)")


def held(vm: Machine) -> set[str]:
    """Return the UUIDs that processes hold."""
    return {line.split()[0] for line in vm.ssh("cat /run/fakegpu/claims/* 2>/dev/null; true").splitlines()}


def uuids(vm: Machine) -> list[str]:
    """Return the UUIDs of all GPUs, in the order of their addresses."""
    return [one["uuid"] for one in json.loads(vm.ssh(f"cat {STATE}"))["gpus"]]


@scenario("a second Xid 94 on a card: relaunched on two of four GPUs without it, proved by what its workers hold")
def dying_gpu(lab: Lab) -> None:
    vm = lab.machine
    begin(lab, "enforce")
    third = uuids(vm)[2]
    assert held(vm) == set(uuids(vm))
    mark = lab.mark()
    fault(lab)
    lab.await_mail("proved: restart", 180)
    assert held(vm) == set(uuids(vm))
    fault(lab)
    lab.await_mail("proved: relaunch", 240)
    shown = lab.show(lab.await_incident("lab-dying")["id"])
    assert steps_of(shown) == [("evidence", "proved"), ("restart", "proved"), ("relaunch", "proved")], shown["requests"]
    assert lab.jobs(mark, UNIT) == [("restart", UNIT)] * 2
    print("       " + vm.ssh(f"grep -v '^#' /run/bandog/env/{UNIT}.env").replace("\n", "\n       ").rstrip())
    assert len(held(vm)) == 2
    assert third not in held(vm)
    assert not gpus(lab)[THIRD]["usable"]
    lab.await_mail("1650000000002", 10)  # the serial number, for the replacement
    environ = vm.ssh(f"tr '\\0' '\\n' < /proc/{lab.main_pid(UNIT)}/environ").splitlines()
    assert "NAME=two 'of' \"four\"" in environ, environ
    # systemd alone starts it again, and the card stays out
    vm.ssh(f"systemctl stop bandog; systemctl restart {UNIT}")
    lab.await_serving(seconds=120)
    assert len(held(vm)) == 2
    assert third not in held(vm)
    vm.power_cycle(clock="utc")
    put_gpus(vm)
    wait_until("the card is known again", 90, lambda: THIRD in gpus(lab) and gpus(lab)[THIRD]["present"])
    assert gpus(lab)[THIRD]["exclusion"]["state"] == "out", gpus(lab)[THIRD]
    assert not gpus(lab)[THIRD]["usable"]


@scenario(
    "a dying card under the default mode: nothing is asked of systemd, nothing is written, people read what would be"
)
def dying_gpu_observed(lab: Lab) -> None:
    vm = lab.machine
    begin(lab, "observe")
    mark, pid = lab.mark(), lab.main_pid(UNIT)
    fault(lab)
    lab.await_mail("would have (run|restarted)", 60)
    fault(lab)
    wait_until("the relaunch is told", 60, lambda: "relaunch" in str(lab.show(lab.await_incident("lab-dying")["id"])))
    assert lab.jobs(mark, UNIT) == []
    assert lab.main_pid(UNIT) == pid
    assert vm.status("ls /run/bandog/env/*") != 0
    assert gpus(lab)[THIRD]["usable"]
