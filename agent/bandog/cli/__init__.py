"""The command line: one file per command group, loaded only when its command is called."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module, metadata
from typing import Any

import click

# command → (module, attribute): importing click alone keeps completion and --help fast.
COMMANDS = {
    "run": ("run", "run"),
    "check": ("check", "check"),
    "explain": ("explain", "explain"),
    "replay": ("replay", "replay"),
    "drill": ("drill", "drill"),
    "status": ("status", "status"),
    "incidents": ("incidents", "incidents"),
    "show": ("incidents", "show"),
    "hold": ("operate", "hold"),
    "release": ("operate", "release"),
    "ack": ("operate", "ack"),
    "rearm": ("operate", "rearm"),
    "doctor": ("doctor", "doctor"),
    "adopt": ("adopt", "adopt"),
    "services": ("services", "services"),
    "gpu": ("gpu", "gpu"),
    "plugins": ("plugins", "plugins"),
    "notify-test": ("operate", "notify_test"),
    "schema": ("schema", "schema"),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        command = getattr(import_module(f".{place[0]}", __name__), place[1])
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a full disk behind the output is said in one line."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # What is still held back would be written at the end, and fail once more.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.ClickException(f"cannot write: {error.strerror}") from error


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 problems found, 2 usage, 78 bad configuration. See bandog(8).",
)
@click.version_option(metadata.version("bandog"), prog_name="bandog")
def main() -> None:
    """A watchdog for GPU servers: detect, act, prove, escalate, with budgets and a record."""
