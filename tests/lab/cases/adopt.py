"""Adopting a unit on a real systemd: it runs as before, is started at boot by bandog, and survives bandog."""

from __future__ import annotations

import json

from ..gpus import FAKEVLLM, put_gpus
from ..lab import PORT, Lab
from ..machine import Machine, wait_until
from ..scenario import scenario
from .install import install, reloads

UNIT = "lab-adopted.service"
SECOND = "lab-second.service"
PROGRAM = "/opt/lab/bin/vllm"
PROGRAM_TEXT = f'#!/bin/sh\nexec python3 {FAKEVLLM} "$@"\n'
UNIT_TEXT = """[Unit]
Description=a model of the lab
[Service]
Environment=FAKEVLLM_LOAD=1 FAKEVLLM_PROFILE=0
ExecStart={program} serve qwen --port {port} \\
    --tensor-parallel-size 4
TimeoutStopSec=20
[Install]
WantedBy=multi-user.target
"""
WANTS = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/50-bandog.conf"


def begin(lab: Lab) -> None:
    """One unit, enabled as an administrator enables it, that serves."""
    vm = lab.machine
    lab.reset(services=(), start=False)
    put_gpus(vm)
    vm.put(PROGRAM_TEXT, PROGRAM, mode="755")
    vm.put(UNIT_TEXT.format(program=PROGRAM, port=PORT), f"/etc/systemd/system/{UNIT}")
    vm.ssh(f"systemctl daemon-reload; systemctl -q enable --now {UNIT}; systemctl start bandog; sync")
    lab.await_serving(seconds=120)


def adopt(lab: Lab, unit: str = UNIT) -> None:
    """Adopt a unit, and print what was written."""
    answer = json.loads(lab.bandog("adopt", unit, "--yes", "--json"))
    print("       " + answer["diff"].rstrip().replace("\n", "\n       "))
    assert answer["written"] and answer["reloaded"], answer


def command_line(lab: Lab, unit: str = UNIT) -> str:
    """Return how the unit's server was started."""
    return lab.machine.ssh(f"tr '\\0' ' ' < /proc/{lab.main_pid(unit)}/cmdline")


def files(vm: Machine) -> str:
    """Return every file and link of an administrator's units."""
    return vm.ssh("find /etc/systemd/system -name '*lab-*' -printf '%p %l\\n' | sort")


def starter(vm: Machine) -> str:
    """Return what the start at boot has printed in this boot."""
    return vm.ssh("journalctl -b -o cat --no-pager -u bandog-services; true")


@scenario("an adopted unit runs as before, is started at boot in its turn, and undo restores all to the letter")
def adopted(lab: Lab) -> None:
    vm = lab.machine
    begin(lab)
    before, pid = files(vm), lab.main_pid(UNIT)
    mark = lab.mark()
    adopt(lab)
    assert len(reloads(lab, mark)) == 1
    assert lab.main_pid(UNIT) == pid
    assert vm.status(f"test -L {WANTS}") != 0
    vm.ssh(f"systemctl restart {UNIT}")
    lab.await_serving(seconds=120)
    assert "--tensor-parallel-size 4 " in command_line(lab), command_line(lab)
    vm.ssh("systemctl reload bandog; sync")
    vm.power_cycle()
    lab.await_serving(seconds=240)
    wait_until("the start has ended", 240, lambda: "started" in starter(vm))
    print("       " + starter(vm).rstrip().replace("\n", "\n       "))
    assert vm.ssh("systemctl is-active multi-user.target").strip() == "active"
    assert "--tensor-parallel-size 4 " in command_line(lab)
    # the environment file decides at the next start, whoever asks for it
    vm.ssh(f"mkdir -p /run/bandog/env; echo TP_SIZE=2 > /run/bandog/env/{UNIT}.env; systemctl restart {UNIT}")
    lab.await_serving(seconds=120)
    assert "--tensor-parallel-size 2 " in command_line(lab)
    lab.bandog("adopt", "--undo", UNIT, "--yes")
    assert files(vm) == before
    vm.ssh(f"systemctl restart {UNIT}")
    lab.await_serving(seconds=120)
    assert "--tensor-parallel-size 4 " in command_line(lab)
    assert vm.status(f"test -e /etc/bandog/services.d/{UNIT.removesuffix('.service')}.yaml") != 0


@scenario("with bandog's Python broken every adopted unit is started plainly at boot")
def broken(lab: Lab) -> None:
    vm = lab.machine
    begin(lab)
    vm.put(UNIT_TEXT.format(program=PROGRAM, port=PORT + 1), f"/etc/systemd/system/{SECOND}")
    vm.ssh(f"systemctl daemon-reload; systemctl -q enable --now {SECOND}")
    for unit in (UNIT, SECOND):
        adopt(lab, unit)
    vm.ssh("mv /usr/lib/bandog/lib /usr/lib/bandog/lib.away; sync")
    vm.power_cycle()
    for number in range(2):
        lab.await_serving(PORT + number, seconds=240)
    assert vm.ssh("systemctl is-failed bandog-services.service; true").strip() == "failed"
    vm.ssh("mv /usr/lib/bandog/lib.away /usr/lib/bandog/lib; systemctl reset-failed; systemctl restart bandog")
    for unit in (SECOND, UNIT):
        lab.bandog("adopt", "--undo", unit, "--yes")
    vm.ssh(f"systemctl disable -q --now {SECOND}; rm /etc/systemd/system/{SECOND}; systemctl daemon-reload")


@scenario("after a purge and a reboot an adopted unit is enabled and runs as it did before")
def purged(lab: Lab) -> None:
    vm = lab.machine
    begin(lab)
    before = files(vm)
    adopt(lab)
    pid = lab.main_pid(UNIT)
    vm.ssh("dpkg -r bandog 2>&1")
    assert vm.ssh(f"readlink {WANTS}").strip() == f"/etc/systemd/system/{UNIT}"
    install(lab)
    assert vm.status(f"test -L {WANTS}") != 0
    mark = lab.mark()
    vm.ssh("dpkg -P bandog 2>&1")
    assert reloads(lab, mark) == []
    assert lab.main_pid(UNIT) == pid
    assert files(vm) == before
    assert vm.status(f"test -e {DROP_IN}") != 0
    vm.ssh(f"systemctl restart {UNIT}; sync")  # systemd still holds the drop-in's text, and it will do
    lab.await_serving(seconds=120)
    vm.power_cycle()
    lab.await_serving(seconds=240)
    assert "--tensor-parallel-size 4 " in command_line(lab)
    assert vm.ssh(f"systemctl is-enabled {UNIT}").strip() == "enabled"
    install(lab)
    vm.ssh(f"systemctl disable -q --now {UNIT}; rm /etc/systemd/system/{UNIT}; systemctl daemon-reload")
