"""The story of a dying GPU: four GPUs serve one model, and one of them fails for the second time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bandog import overrides
from bandog.cli.gpu import print_gpus
from bandog.daemon import Daemon
from bandog.domain.model import StepState
from demo.teller import Teller
from simhost.served import Served
from simhost.stage import MAIN, TOP, Stage

THIRD = "0000:e5:00.0"
REMAPPED = (
    "NVRM: Xid (PCI:0000:e5:00): 63, Row Remapper: New row (0x00000012ab34c0{:02x}) marked for remapping, "
    "reset gpu to activate."
)
CONTAINED = "NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No"
WHILE = 6.0
"""How long weeks and hours take here, in seconds: after five, a line of the same Xid counts as another fault."""
SHORTER = {
    "  - do: restart\n": "  - do: restart\n    with: {settle: 3s}\n",
    "{without: $subject}": "{without: $subject, settle: 3s}",
}
"""What of the shipped policies takes less time in a demonstration."""


def play(folder: Path, console: Console) -> bool:
    """Set the stage, play, tear everything down; True when the model is served again, without the card."""
    policies = {}
    for number in (124, 134):
        [file] = (TOP / "policies").glob(f"{number}-*.yaml")
        policies[file.name] = file.read_text()
        for long, short in SHORTER.items():
            policies[file.name] = policies[file.name].replace(long, short)
    served = Served(folder / "cards", build=folder / "nvml", unit="vllm-qwen.service", load=1.0)
    host = Stage(folder / "host", policies=policies)
    try:
        host.systemd.shutdown()
        (host.root / "etc/services.d/qwen.yaml").write_text(served.service_file)
        main = MAIN.format(mode="enforce", url=host.sink.url) + served.plugins
        (host.root / "etc/bandog.yaml").write_text(main)
        served.boot(host.systemd, host.root / "run")
        return asyncio.run(_Story(host, served, Teller(console)).tell())
    finally:
        host.close()


class _Story:
    """The host, what it serves, and who tells."""

    def __init__(self, host: Stage, served: Served, teller: Teller) -> None:
        self._host = host
        self._served = served
        self._teller = teller

    async def tell(self) -> bool:
        """Tell it to its end."""
        host, teller = self._host, self._teller
        host.on_change = teller.change
        teller.say(f"vllm-qwen.service serves qwen on port {self._served.port}, with tensor parallel size 4")
        async with host.running() as daemon:
            await host.until(lambda: len(daemon.site.gpus.usable()) == 4)
            teller.say(f"bandog watches, in enforce mode; GPUs held: {self._held()}")
            for week in range(1, 4):
                teller.say(f"week {week}: the card replaces a row of its memory; the kernel prints:")
                self._print(REMAPPED.format(week))
                await asyncio.sleep(WHILE)
            await self._fails("its memory fails, and takes the model server along", "restart")
            teller.say(f"restarted on the same GPUs: {self._held()}", "green")
            await asyncio.sleep(WHILE)
            await self._fails("hours later the same card fails again", "relaunch")
            teller.say(f"relaunched; GPUs held: {self._held()}", "green")
            await host.until(lambda: any("proved: relaunch" in one["message"] for one in host.sink.messages), 15)
            return self._end(daemon)

    def _held(self) -> str:
        return ", ".join(sorted(one.removeprefix("0000:") for one in self._served.held))

    def _print(self, line: str) -> None:
        self._teller.say(f"  {line}", "red")
        self._host.kernel.print(line)

    async def _fails(self, words: str, until: str) -> None:
        """Let the third card fail, and wait for what bandog does until an action has ended."""
        self._teller.say(f"{words}; the kernel prints:", "bold red")
        self._print(CONTAINED)
        await asyncio.to_thread(self._served.mode, "die", "2")
        ended = (StepState.PROVED, StepState.FAILED, StepState.SKIPPED)
        await self._host.until(
            lambda: any(one.action == until and one.end in ended for one in self._host.said("step-ended")), 60
        )

    def _end(self, daemon: Daemon) -> bool:
        """Show what is left behind, and return whether it is what should be."""
        host, console = self._host, self._teller.console
        self._teller.messages(host.sink.messages, "one thread for each incident")
        last = next(one["message"] for one in reversed(host.sink.messages) if "proved: relaunch" in one["message"])
        console.print("\n[bold]The last of them[/], with what the manufacturer asks for:")
        console.print("".join(f"  {escape(line)}\n" for line in last.strip().splitlines()))
        console.print("[bold]What systemd gives the unit at each start[/], from /run/bandog/env:")
        text = overrides.path_of(host.root / "run", self._served.unit).read_text()
        console.print("".join(f"  {escape(line)}\n" for line in text.splitlines() if not line.startswith("#")))
        print_gpus(console, daemon.gpus.lines())
        console.print(f"\n[bold]Jobs asked of systemd:[/] {host.systemd.jobs}")
        left_out = len(self._served.held) == 2 and THIRD not in self._served.held
        return left_out and [verb for verb, _ in host.systemd.jobs] == ["restart", "restart"]
