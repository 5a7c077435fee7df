"""`bandog doctor`: is this host ready, what is not watched and why, and the exact fix."""

from __future__ import annotations

import json

import click

from ..domain.codec import to_json
from ..host import checkup
from ..host.checkup import BAD, OK, Check
from ..host.checkup_gpu import gpu
from .operate import JSON_OPTION
from .place import local_paths

TOPICS = {**checkup.TOPICS, "gpu": gpu}
MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red"), "unknown": ("?", "cyan")}


@click.command()
@click.argument("topic", required=False, type=click.Choice(sorted(TOPICS)))
@JSON_OPTION
def doctor(topic: str | None, as_json: bool) -> None:
    """Say whether this host is ready for bandog.

    Each thing that is not comes with its fix, where there is one. Nothing is changed. Exit code 1 if
    something is bad.
    """
    paths = local_paths()
    checks = [check for name, look in TOPICS.items() if topic in (None, name) for check in look(paths)]
    if as_json:
        for check in checks:
            click.echo(json.dumps(to_json(check)))
    else:
        _print(checks)
    raise SystemExit(1 if any(check.state == BAD for check in checks) else 0)


def _print(checks: list[Check]) -> None:
    shown = ""
    for check in checks:
        if check.topic != shown:
            shown = check.topic
            click.secho(shown, bold=True)
        mark, colour = MARKS[check.state]
        click.echo(f"  {click.style(mark, fg=colour)} {check.name}: {check.what}")
        if check.fix and check.state != OK:
            click.echo(f"      fix: {check.fix}")
