"""From the start of the process to READY, with everything that is shipped."""

from __future__ import annotations

from figure import Measured, percentile
from ground import Ground, helper, said

MAIN = """\
mode: observe
notify:
  oncall: {{urls: "{mail}"}}
  chat: {{urls: "{chat}"}}
"""


def ready(small: bool) -> Measured:
    """The middle of several starts, on a host that has a database already, with the real /dev/kmsg."""
    took, cpu = [], []
    with Ground() as ground, helper("receivers") as receivers:
        ground.configure(MAIN.format(**said(receivers)))
        for _ in range(2 if small else 7):
            with ground.daemon() as daemon:
                took.append(daemon.ready_after)
                cpu.append(daemon.cpu())
    more = {
        "best": f"{min(took):.2f} s",
        "worst": f"{max(took):.2f} s",
        "CPU": f"{percentile(cpu, 0.5):.2f} s",
        "starts": str(len(took)),
    }
    return Measured(value=min(took) if small else percentile(took, 0.5), more=more)
