"""The host fails under the agent itself: its disk, the journal, the bus, the network, its own children."""

from __future__ import annotations

import re
import time

from ..images import LAB
from ..lab import Lab, body
from ..machine import LabError, Machine, wait_until
from ..scenario import scenario
from .hung import PLACE, freeze, thaw
from .restart import POLICY, xid

STATE = "/var/lib/bandog"
DISK = "/opt/lab/state.img"
# WatchdogSec of the unit and a little: an agent whose loop had stopped would have been killed by then.
PAST_THE_WATCHDOG = 35


def restarts(vm: Machine) -> int:
    """Return how often systemd had to start the agent again."""
    return int(vm.ssh("systemctl show -P NRestarts bandog"))


def begin_on_own_disk(lab: Lab) -> None:
    """Begin anew with the agent's state on a small file system of its own."""
    lab.reset(mode="enforce", policies={"10-lab": POLICY}, start=False)
    lab.machine.ssh(
        f"truncate -s 48M {DISK} && mkfs.ext4 -q -F {DISK} && mount -o loop {DISK} {STATE} && "
        f"rmdir {STATE}/lost+found && chmod 700 {STATE} && systemctl start bandog"
    )


def end_own_disk(lab: Lab) -> None:
    """Give the agent its usual place back."""
    lab.machine.ssh(f"systemctl stop bandog; umount -l {STATE}")


def assert_told_not_acted(lab: Lab, mark: str, agent: int, pid: int, *, seconds: int = 10) -> None:
    """While the record cannot be written: people are told, nothing is done, the loop lives."""
    lab.machine.kernel_line(xid(pid))
    lab.await_mail("Seen: Xid 94", 30)
    lab.await_mail("store stuck", 60)
    time.sleep(seconds)
    assert lab.jobs(mark) == []
    assert lab.main_pid("bandog") == agent
    assert lab.main_pid() == pid


@scenario("its disk is frozen: people are told, nothing disruptive is done; after the thaw it acts on the record")
def frozen_disk(lab: Lab) -> None:
    begin_on_own_disk(lab)
    vm = lab.machine
    agent, pid, mark = lab.main_pid("bandog"), lab.main_pid(), lab.mark()
    try:
        vm.ssh(f"fsfreeze -f {STATE}")
        assert_told_not_acted(lab, mark, agent, pid, seconds=PAST_THE_WATCHDOG)
    finally:
        vm.ssh(f"fsfreeze -u {STATE}")
    lab.await_mail("Resolved: restart", 120)
    assert len(lab.jobs(mark)) == 1
    assert restarts(vm) == 0
    end_own_disk(lab)


@scenario("its disk is full: people are told, nothing disruptive is done")
def full_disk(lab: Lab) -> None:
    begin_on_own_disk(lab)
    vm = lab.machine
    agent, pid, mark = lab.main_pid("bandog"), lab.main_pid(), lab.mark()
    vm.ssh(
        f"dd if=/dev/zero of={STATE}/full bs=64k status=none; dd if=/dev/zero of={STATE}/full2 bs=1 status=none; true"
    )
    assert_told_not_acted(lab, mark, agent, pid)
    vm.ssh(f"rm {STATE}/full {STATE}/full2")
    lab.await_mail("Resolved: restart", 120)
    assert len(lab.jobs(mark)) == 1
    end_own_disk(lab)


@scenario("its disk fails and the kernel makes it read-only: people are told, nothing disruptive is done")
def read_only_disk(lab: Lab) -> None:
    begin_on_own_disk(lab)
    agent, pid, mark = lab.main_pid("bandog"), lab.main_pid(), lab.mark()
    # what ext4 does by itself at an error in its journal (ext4(5), mount option abort)
    lab.machine.ssh(f"mount -o remount,errors=remount-ro,abort {STATE}; test ! -w {STATE}/x")
    assert_told_not_acted(lab, mark, agent, pid)
    end_own_disk(lab)


@scenario("journald is stopped: the agent acts, tells, and its loop goes on")
def stopped_journald(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm = lab.machine
    agent, pid = lab.main_pid("bandog"), lab.main_pid()
    # ssh itself logs: the whole story runs by itself and is looked at afterwards
    vm.put(
        "systemctl kill -s STOP systemd-journald\n"
        f"echo '{xid(pid)}' > /proc/bandog-lab\nsleep {PAST_THE_WATCHDOG + 10}\n"
        "systemctl kill -s CONT systemd-journald\n",
        "/root/story.sh",
    )
    vm.ssh("setsid sh /root/story.sh > /dev/null 2>&1 < /dev/null &")
    lab.await_mail("Seen: Xid 94", PAST_THE_WATCHDOG)
    lab.await_mail("proved: restart", PAST_THE_WATCHDOG)
    wait_until("the story has ended", 90, lambda: vm.status("pgrep -f story.sh") != 0)
    assert lab.main_pid("bandog") == agent
    assert lab.main_pid() not in (0, pid)


@scenario("the message bus is restarted: the agent still restarts a unit afterwards")
def restarted_bus(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm = lab.machine
    agent, pid = lab.main_pid("bandog"), lab.main_pid()
    vm.ssh("systemctl restart dbus")
    vm.kernel_line(xid(pid))
    lab.await_mail("Resolved: restart", 120)
    assert lab.main_pid("bandog") == agent
    assert lab.main_pid() not in (0, pid)


@scenario("the network is gone: the agent acts once, and what it had to say arrives when the network is back")
def no_network(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm = lab.machine
    pid, mark = lab.main_pid(), lab.mark()
    vm.put(
        f"ip link set eth0 down\necho '{xid(pid)}' > /proc/bandog-lab\nsleep 25\nip link set eth0 up\n"
        "networkctl reconfigure eth0\n",
        "/root/story.sh",
    )
    vm.ssh("setsid sh /root/story.sh > /dev/null 2>&1 < /dev/null &")
    time.sleep(20)
    assert lab.mail.messages == []
    lab.await_mail("Seen: Xid 94", 180)
    lab.await_mail("Resolved: restart", 180)
    assert len(lab.jobs(mark)) == 1
    texts = [body(one) for one in lab.mail.messages]
    assert len([one for one in texts if "Seen: Xid 94" in one]) == 1, texts


@scenario("a child of the agent sits in D: the loop goes on, and `systemctl restart bandog` stops it within 2 s")
def stuck_child(lab: Lab) -> None:
    vm = lab.machine
    lab.reset(mode="enforce", policies={"10-lab": POLICY}, start=False)
    vm.put(LAB / "plugins/stuck_child.py", "/etc/bandog/plugins.d/stuck_child.py")
    freeze(vm)
    try:
        # the agent's own view of the disk is read-only; this one place is not, as a driver's node would not be
        vm.put(f"[Service]\nReadWritePaths={PLACE}\n", "/run/systemd/system/bandog.service.d/lab.conf")
        vm.ssh("systemctl daemon-reload; systemctl start bandog")
        wait_until("the child is in D", 60, lambda: in_d(vm, "touch"))
        time.sleep(PAST_THE_WATCHDOG)
        assert in_d(vm, "touch") == 1, "a second child was started beside the one that is stuck"
        pid = lab.main_pid()
        vm.kernel_line(xid(pid))
        lab.await_mail("proved: restart", 90)
        assert restarts(vm) == 0
        mark = lab.mark()
        vm.ssh("systemctl restart bandog")
        seconds = stop_time(lab, mark)
        print(f"       stopped within {seconds:.2f} s")
        assert seconds <= 2
    finally:
        vm.ssh(
            "rm -r /run/systemd/system/bandog.service.d /etc/bandog/plugins.d/stuck_child.py; systemctl daemon-reload"
        )
        thaw(vm)
        vm.ssh(f"systemctl restart bandog; umount {PLACE}", check=False)


@scenario(
    "the root becomes read-only under it: people are told, nothing disruptive is done; after a boot it acts again"
)
def read_only_root(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm = lab.machine
    agent, before = lab.main_pid("bandog"), invocation(vm)
    pid = lab.main_pid()
    # what sysrq does with every file system, and what an emergency remount comes to
    vm.ssh("sync; echo u > /proc/sysrq-trigger")
    wait_until("the root is read-only", 60, lambda: vm.status("touch /root/x") != 0)
    vm.kernel_line(xid(pid))
    lab.await_mail("Seen: Xid 94", 30)
    lab.await_mail("store stuck", 60)
    time.sleep(PAST_THE_WATCHDOG)
    assert lab.main_pid("bandog") == agent
    # the journal cannot be written either: the unit itself tells that it was left alone
    assert (lab.main_pid(), invocation(vm)) == (pid, before)
    vm.power_cycle(clock="utc")
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm.kernel_line(xid(lab.main_pid()))
    lab.await_mail("Resolved: restart", 120)
    assert invocation(vm) != before


def invocation(vm: Machine) -> str:
    """Return the id of the model unit's present run."""
    return vm.ssh("systemctl show -P InvocationID lab-model")


def in_d(vm: Machine, comm: str) -> int:
    """Return how many tasks of that name are in D state."""
    out = vm.ssh(f"ps -eo stat=,comm= | awk '$1 ~ /^D/ && $2 == \"{comm}\"' | wc -l")
    return int(out)


def stop_time(lab: Lab, mark: str) -> float:
    """Return the seconds from systemd's `Stopping` to its `Stopped`, as the journal has them."""
    log = lab.machine.ssh(f"journalctl --after-cursor='{mark}' -o short-monotonic --no-pager -u bandog _PID=1")
    at = {}
    for line in log.splitlines():
        found = re.match(r"\[\s*([0-9.]+)\].*: (Stopping|Stopped) bandog", line)
        if found:
            at[found[2]] = float(found[1])
    if set(at) != {"Stopping", "Stopped"}:
        raise LabError(f"the journal does not tell when the unit stopped: {log}")
    return at["Stopped"] - at["Stopping"]
