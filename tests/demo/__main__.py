"""`make demo`: the real daemon against a simulated host, told as it happens; ends by itself."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.markup import escape

from bandog.domain.changes import IncidentChanged
from simhost.stage import Stage

STORIES = ("xid",)
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
WORDS = {
    "opened": "incident opened",
    "step-started": "step begins",
    "step-ended": "step ended",
    "resolved": "resolved",
    "stuck": "stuck",
}


class Teller:
    """Prints what happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: float | None = None

    def say(self, text: str, style: str = "bold cyan") -> None:
        """Print a line of the narrator."""
        loop = asyncio.get_running_loop()
        self._begun = self._begun or loop.time()
        self._console.print(f"[dim]{loop.time() - self._begun:5.1f} s[/]  [{style}]{escape(text)}[/]")

    def change(self, change: IncidentChanged) -> None:
        """Print a change of an incident."""
        word = WORDS.get(change.what)
        if word is None:
            return
        action = f" {change.action}" if change.action else ""
        style = "green" if change.what == "resolved" else "yellow"
        self.say(f"#{change.incident.id} {word}{action}: {change.why}", style)


async def story(host: Stage, console: Console) -> bool:
    """A model server dies of an Xid; True when bandog brought it back and said so."""
    teller = Teller(console)
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
    console.print("\n[bold]Messages sent[/], all in one thread:")
    for one in host.sink.messages:
        first = one["message"].strip().splitlines()[0]
        console.print(f"  [bold]{escape(one['title'])}[/]  {escape(first)}")
    console.print(f"\n[bold]Jobs asked of systemd:[/] {host.systemd.jobs}")
    return bool(host.said("resolved")) and len(host.systemd.jobs) == 1


def main() -> int:
    """Set the stage, play the story, tear everything down."""
    name = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else "xid"
    if name not in STORIES:
        print(f"there is no story {name!r} yet; there is: {', '.join(STORIES)}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.CRITICAL)
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="bandog-demo-") as folder:
        host = Stage(Path(folder), load=2.0, policies={"20-xid-94.yaml": POLICY})
        try:
            well = asyncio.run(story(host, console))
        finally:
            host.close()
    console.print("[green]the demo ended well[/]" if well else "[red]the demo did not end well[/]")
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
