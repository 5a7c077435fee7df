"""A card dies slowly under a real unit: noted, restarted at the first fault, relaunched without the card at the next.

Who waits between two lines of the driver lets more than five seconds pass: nearer ones are one event to the history.
"""

from __future__ import annotations

import json

from ..fleet import await_post, posts
from ..gpus import ENVIRONMENT, FAKEVLLM, PLACE, STATE, gpus, put_gpus, set_gpus
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


def begin(lab: Lab, mode: str, *, order: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    """Four GPUs, which the driver counts in this order of their addresses, and one server on all of them."""
    vm = lab.machine
    put_gpus(vm)
    state = json.loads(vm.ssh(f"cat {STATE}"))
    vm.put(json.dumps({**state, "gpus": [state["gpus"][place] for place in order]}), STATE)
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


def row_remapped(lab: Lab, row: int) -> None:
    """The third card replaces a row of its memory."""
    line = f"63, Row Remapper: New row (0x{row:016x}) marked for remapping, reset gpu to activate."
    lab.machine.kernel_line(f"NVRM: Xid (PCI:{THIRD[:-2]}): {line}")


def held(vm: Machine) -> set[str]:
    """Return the UUIDs that living processes hold."""
    claims = f"cd {PLACE}/claims && for pid in [0-9]*; do test -d /proc/$pid && cat $pid; done; true"
    return {line.split()[0] for line in vm.ssh(claims).splitlines()}


def uuids(vm: Machine) -> list[str]:
    """Return the UUIDs of all GPUs, in the order of their addresses."""
    return [one["uuid"] for one in sorted(json.loads(vm.ssh(f"cat {STATE}"))["gpus"], key=lambda one: one["pci"])]


def environment(vm: Machine) -> str:
    """Return what a relaunch has put in force for the unit, printed too; "" where nothing is."""
    text = vm.ssh(f"grep -v '^#' /run/bandog/env/{UNIT}.env", check=False)
    print("       " + (text or "no environment of bandog's").replace("\n", "\n       ").rstrip())
    return text


def override(lab: Lab) -> str:
    """Return what the status says of a relaunch that is in force, "" where none is."""
    [line] = lab.status()["services"]
    return str(line.get("override", ""))


@scenario("a second Xid 94 on a card: relaunched on two of four GPUs without it, proved by what its workers hold")
def dying_gpu(lab: Lab) -> None:
    vm = lab.machine
    begin(lab, "enforce")
    third = uuids(vm)[2]
    assert held(vm) == set(uuids(vm))
    mark = lab.mark()
    for row in range(3):
        row_remapped(lab, row)
        vm.ssh("sleep 6")
    wait_until("three rows are on record", 30, lambda: gpus(lab)[THIRD]["history"].startswith("3 Xid 63 since"))
    assert lab.jobs(mark, UNIT) == []
    fault(lab)
    lab.await_mail("proved: restart", 180)
    assert held(vm) == set(uuids(vm))
    fault(lab)
    lab.await_mail("proved: relaunch", 240)
    shown = lab.show(lab.await_incident("lab-dying")["id"])
    assert steps_of(shown) == [("evidence", "proved"), ("restart", "proved"), ("relaunch", "proved")], shown["requests"]
    assert lab.jobs(mark, UNIT) == [("restart", UNIT)] * 2
    assert 'TP_SIZE="2"' in environment(vm)
    assert len(held(vm)) == 2
    assert third not in held(vm)
    assert not gpus(lab)[THIRD]["usable"]
    assert "without e5:00.0" in override(lab)
    await_post(lab, "proved: relaunch")
    [told] = posts(lab, "proved: relaunch")
    for words in (
        "serial 1650000000002, part number 692-2G520-0200-000",
        "slot 0000:e5:00.0",
        "History: 3 Xid 63 since",
    ):
        assert words in told, told  # what the manufacturer asks for
    assert ", 2 Xid 94 since" in told, told
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
    assert "kept out since" in lab.bandog("status")
    assert environment(vm) == ""
    assert override(lab) == ""


@scenario("a card is missing, and the driver counts in an order of its own: the service comes back on the right cards")
def missing_card(lab: Lab) -> None:
    vm = lab.machine
    begin(lab, "enforce", order=(3, 2, 0, 1))
    mark = lab.mark()
    set_gpus(vm, gpus__2__missing=True)  # the first by address: every number behind it shifts
    lab.await_mail("proved: relaunch", 240)
    assert held(vm) == set(uuids(vm)[1:3])
    assert 'CUDA_VISIBLE_DEVICES="0,1"' in environment(vm)
    # systemd makes a start of the restart of a unit that is down
    assert lab.jobs(mark, UNIT) in ([("restart", UNIT)], [("start", UNIT)])


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
