"""The host breaks around the agent: it goes on pinging, people are told, and nothing is done without its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ..disks import frozen, small_disk
from ..fleet import await_post, begin, fault, gpu, posts, restarts, run_of
from ..lab import Lab
from ..machine import Machine, wait_until
from ..scenario import scenario

AGENT = "bandog.service"
STATE = "/var/lib/bandog"
WEIGHTS = "/srv/weights"
PING_WITHIN = 5.0
AWAY = 25
"""Seconds for which journald stands still or the network is gone."""
POLICY = """policy: lab-bad-day
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 2s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 1s}
"""
# The shipped policy, which stays open for 5 minutes.
STUCK = """policy: agent-stuck
match: {kind: agent.store-stuck}
quiet: 1s
resolve: cleared
notify: [oncall]
"""
POLICIES = {"10-lab": POLICY, "910-agent-stuck": STUCK}


def line_of(lab: Lab, name: str) -> str:
    """Return the driver's line about a fault that names the service's process."""
    return fault(name, lab.main_pid(f"lab-{name}"))


def assert_pings(vm: Machine) -> None:
    """The last ping of the watchdog is a few seconds old at most."""
    out = vm.ssh("systemctl show -P WatchdogTimestampMonotonic bandog; cat /proc/uptime")
    age = float(out.split()[1]) - int(out.split()[0]) / 1e6
    assert age <= PING_WITHIN, f"the last ping was {age:.1f} s ago"


@contextmanager
def full(vm: Machine, place: str) -> Iterator[None]:
    """Fill the file system at `place` to the last block."""
    vm.ssh(f"dd if=/dev/zero of={place}/filler bs=64K 2>/dev/null; dd if=/dev/zero of={place}/rest bs=1K; true")
    try:
        yield
    finally:
        vm.ssh(f"rm -f {place}/filler {place}/rest")


@contextmanager
def read_only(vm: Machine, place: str) -> Iterator[None]:
    """Make every file system read-only, as the kernel does in an emergency."""
    vm.ssh("echo u > /proc/sysrq-trigger")
    wait_until("the disk is read-only", 20, lambda: vm.status(f"touch {place}/probe") != 0)
    try:
        yield
    finally:
        vm.ssh(f"mount -o remount,rw / && mount -o remount,rw {place}")


Way = Callable[[Machine, str], AbstractContextManager[None]]
DISKS: tuple[tuple[str, str, Way], ...] = (
    ("frozen", "m1", frozen),
    ("full", "m2", full),
    ("read-only, and the root with it", "m3", read_only),
)


@scenario("the state's disk frozen, full, read-only: told, no act without its record, and the act when it is back")
def dying_disk(lab: Lab) -> None:
    vm = lab.machine
    begin(lab, POLICIES, start=False)
    with small_disk(vm, STATE):
        vm.ssh("systemctl start bandog")
        try:
            for words, name, way in DISKS:
                run, unit, mark = run_of(lab, AGENT), f"lab-{name}.service", lab.mark()
                before = run_of(lab, unit)
                lab.forget_messages()
                with way(vm, STATE):
                    vm.kernel_line(line_of(lab, name))
                    await_post(lab, "Seen: Xid 94")
                    await_post(lab, "agent store stuck")
                    assert run_of(lab, unit) == before, f"{words}: acted without a record"
                    assert_pings(vm)
                await_post(lab, "Resolved")
                assert restarts(lab, mark) == {unit: 1}, (words, restarts(lab, mark))
                request = lab.show(lab.await_incident("lab-bad-day")["id"])["requests"][0]
                assert request["state"] == "proved" and request["request"]["service"] == name, request
                assert run_of(lab, AGENT) == run, words
                print(f"       {words}: told, waited, acted once it was back", flush=True)
        finally:
            vm.ssh(
                f"mount -o remount,rw /; mount -o remount,rw {STATE}; fsfreeze -u {STATE}; systemctl stop bandog; true"
            )


def resolved_within(lab: Lab, name: str, seconds: float) -> None:
    """Wait until the fault of a service is seen, acted on and told as resolved."""
    wait_until(f"a mail that {name} is well again; so far {lab.titles()}", seconds, lambda: posts(lab, "Resolved"))


@scenario("journald stands still, D-Bus goes, the network goes: the chain goes on and people are told")
def no_neighbours(lab: Lab) -> None:
    vm = lab.machine
    begin(lab, POLICIES)
    run, mark = run_of(lab, AGENT), lab.mark()
    lines = {name: line_of(lab, name) for name in ("m0", "m1", "m2", "m3")}

    began = vm.ssh("cut -d' ' -f1 /proc/uptime")
    lab.forget_messages()
    journal = "$(systemctl show -P MainPID systemd-journald)"
    vm.put_stdin(
        f"kill -STOP {journal}; setsid sh -c 'sleep {AWAY}; kill -CONT {journal}' >/dev/null 2>&1 & "
        "cat > /proc/bandog-lab",
        f"{lines['m0']}\n",
    )
    resolved_within(lab, "m0", AWAY - 3)
    vm.ssh(f"kill -CONT {journal}")
    assert_pings(vm)

    for name, how in (("m1", "systemctl restart dbus"), ("m2", "systemctl stop dbus.socket dbus.service")):
        lab.forget_messages()
        vm.ssh(how)
        try:
            vm.kernel_line(lines[name])
            resolved_within(lab, name, 60)
            assert_pings(vm)
        finally:
            vm.ssh("systemctl start dbus.socket dbus.service")

    lab.forget_messages()
    vm.put_stdin(
        f"setsid sh -c 'ip link set eth0 down; sleep {AWAY}; ip link set eth0 up' >/dev/null 2>&1 & "
        "sleep 1; cat > /proc/bandog-lab",
        f"{lines['m3']}\n",
    )
    assert not lab.hook.messages
    resolved_within(lab, "m3", 120)
    assert_pings(vm)
    kernel = vm.ssh("dmesg --facility user").splitlines()
    told = [line for line in kernel if "bandog: " in line and gpu("m3") in line]
    assert told, kernel[-20:]
    assert restarts(lab, mark) == {f"lab-{name}.service": 1 for name in lines}, (began, restarts(lab, mark))
    assert run_of(lab, AGENT) == run


PROBE = f"""from datetime import timedelta
import bandog
class Stuck(bandog.Probe):
    name, emits, every, deadline = "stuck-child", {{}}, timedelta(seconds=5), timedelta(seconds=4)
    def poll(self, site):
        site.child(["cp", "/etc/hostname", "{WEIGHTS}/copy"], deadline=timedelta(milliseconds=500))
        return ()
@bandog.hookimpl
def register_detectors(register): register(Stuck)
"""
IN_D = "grep -l '^State:.D' /proc/[0-9]*/status | xargs -r grep -lx 'Name:.cp'"
STOP_WITHIN = 2.0
TIMED = "date +%s.%N; systemctl stop bandog; date +%s.%N; systemctl start bandog; date +%s.%N"


def timed_restart(vm: Machine) -> tuple[float, float]:
    """Stop and start the agent; return the seconds of each."""
    begin_, stopped, started = map(float, vm.ssh(TIMED).split())
    return stopped - begin_, started - stopped


@scenario("a child of the agent in D state delays neither its pings nor its restart")
def stuck_child(lab: Lab) -> None:
    vm = lab.machine
    lab.reset(services=(), plugins={"stuck_child": PROBE}, start=False)
    with small_disk(vm, WEIGHTS):
        vm.ssh("systemctl start bandog")
        usual = timed_restart(vm)
        run = run_of(lab, AGENT)
        with frozen(vm, WEIGHTS):
            wait_until("a child of ours is in D state", 60, lambda: vm.ssh(IN_D))
            child = vm.ssh(IN_D).split("/")[2]
            assert "bandog.service" in vm.ssh(f"cat /proc/{child}/cgroup")
            vm.ssh("sleep 6")
            assert_pings(vm)
            assert run_of(lab, AGENT) == run
            took = timed_restart(vm)
            assert vm.status(f"grep -q '^State:.D' /proc/{child}/status") == 0, "it was not stuck any more"
            assert_pings(vm)
        print(f"       stop {took[0]:.1f} s, start {took[1]:.1f} s; without it {usual[0]:.1f} s, {usual[1]:.1f} s")
        assert took[0] <= STOP_WITHIN and took[1] <= usual[1] + STOP_WITHIN, (took, usual)
        vm.ssh("systemctl stop bandog")


FLOOD = 100_000
FIRST, MIDDLE, LAST = "0000:f1:00", "0000:f2:00", "0000:f3:00"


def kernel_counts(lab: Lab) -> dict[str, int]:
    """Return what the agent counts of the kernel's log."""
    counts: dict[str, int] = next(one["counts"] for one in lab.status()["sources"] if one["name"] == "kmsg")
    return counts


@scenario("100,000 kernel lines at once: wanted ones are found in the buffer or the journal, the loss is counted")
def flood(lab: Lab) -> None:
    vm = lab.machine
    lab.reset(services=())
    wanted = [f"NVRM: Xid (PCI:{one}): 63, Row remapper event: wanted" for one in (FIRST, MIDDLE, LAST)]
    half = FLOOD // 2
    vm.ssh(f"seq -f 'lab: flood line %.0f' {half} > /run/flood")
    before, run = kernel_counts(lab), run_of(lab, AGENT)
    script = "\n".join(
        [
            "date +%s.%N",
            *(
                f"echo '{line}' > /proc/bandog-lab\ndd if=/run/flood of=/proc/bandog-lab bs=1M status=none"
                for line in wanted[:2]
            ),
            f"echo '{wanted[2]}' > /proc/bandog-lab",
            "date +%s.%N; rm /run/flood",
        ]
    )
    began, ended = map(float, vm.ssh(script).split())
    await_found(lab, LAST)
    kept = vm.ssh("journalctl -k -b -o cat --no-pager -g 'NVRM: Xid' | cat")
    for gpu_, line in zip((FIRST, MIDDLE), wanted, strict=False):
        if line in kept:
            await_found(lab, gpu_)
    after = kernel_counts(lab)
    read, lost = (after[name] - before[name] for name in ("read", "lost"))
    in_journal = sum(line in kept for line in wanted)
    print(
        f"       {FLOOD} lines in {ended - began:.1f} s: {read} read, {lost} overrun; {in_journal} of 3 in the journal"
    )
    assert read + lost >= FLOOD, (before, after)
    if lost:
        wait_until(
            "the loss is an incident", 60, lambda: [one for one in lab.incidents() if one["kind"] == "agent.kmsg-lost"]
        )
    assert_pings(vm)
    assert run_of(lab, AGENT) == run


def await_found(lab: Lab, address: str) -> None:
    """Wait until an incident is about this GPU."""
    wait_until(
        f"an incident about {address}",
        60,
        lambda: [one for one in lab.incidents() if one["subject"] == f"gpu:{address}.0"],
    )
