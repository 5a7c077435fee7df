"""The first story: a model server dies of an Xid, and is restarted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console

from demo.teller import Teller
from simhost.stage import Stage

XID = "NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No"
POLICY = """\
# The shipped policy for Xid 94, with the waiting shortened for a demonstration.
policy: xid-contained-ecc
description: A contained ECC error killed a process; the GPU itself goes on.
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 6s
notify: [oncall]
steps:
  - do: evidence
  - do: restart
    with: {settle: 3s}
  - do: notify
    with: {to: [oncall], urgent: true, text: "$service does not come back after Xid $xid"}
"""


def play(folder: Path, console: Console) -> bool:
    """Set the stage, play, tear everything down; True when bandog brought it back and said so."""
    host = Stage(folder, load=2.0, policies={"20-xid-94.yaml": POLICY})
    try:
        return asyncio.run(_story(host, Teller(console)))
    finally:
        host.close()


async def _story(host: Stage, teller: Teller) -> bool:
    host.on_change = teller.change
    teller.say(f"vllm-qwen.service serves on port {host.port}, process {host.pid}")
    async with host.running():
        teller.say("bandog watches, in enforce mode")
        await asyncio.sleep(2)
        old = host.pid
        process = host.systemd.units["vllm-qwen.service"].process
        assert process is not None
        teller.say("the model server dies; the kernel prints:", "bold red")
        teller.say(f"  {XID}", "red")
        process.kill()
        process.wait()
        host.kernel.print(XID)
        await host.until(lambda: bool(host.said("resolved") or host.said("stuck")), 60)
        teller.say(f"vllm-qwen.service serves again, process {host.pid} (was {old})")
        await host.until(lambda: any(one.get("what") == "resolved" for one in host.sink.messages), 15)
    teller.messages(host.sink.messages, "all in one thread")
    teller.console.print(f"\n[bold]Jobs asked of systemd:[/] {host.systemd.jobs}")
    return bool(host.said("resolved")) and len(host.systemd.jobs) == 1
