"""A flood of kernel lines: what is wanted is found, what is lost is counted."""

from __future__ import annotations

from ..fleet import run_of
from ..lab import Lab
from ..machine import Machine, wait_until
from ..scenario import scenario

AGENT = "bandog.service"
PING_WITHIN = 5.0
FLOOD = 100_000
FIRST, MIDDLE, LAST = "0000:f1:00", "0000:f2:00", "0000:f3:00"


def assert_pings(vm: Machine) -> None:
    """The last ping of the watchdog is a few seconds old at most."""
    out = vm.ssh("systemctl show -P WatchdogTimestampMonotonic bandog; cat /proc/uptime")
    age = float(out.split()[1]) - int(out.split()[0]) / 1e6
    assert age <= PING_WITHIN, f"the last ping was {age:.1f} s ago"


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
