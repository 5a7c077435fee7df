"""`bandog plugins`: every plugin that was found, and what became of it."""

from __future__ import annotations

import json
from typing import Any

import click

from ..domain.codec import to_json
from .client import NotRunning, call
from .operate import JSON_OPTION
from .output import plain
from .place import local_paths


@click.command()
@JSON_OPTION
def plugins(as_json: bool) -> None:
    """List plugins, and why one did not load.

    As the running daemon has them, or as they would load now. Exit code 1 if one is broken.
    """
    try:
        rows: list[dict[str, Any]] = call(local_paths(), "plugins")
    except NotRunning:
        rows = _load()
    for row in rows:
        if as_json:
            click.echo(json.dumps(row))
        else:
            colour = {"loaded": "green", "broken": "red"}.get(row["state"], "yellow")
            click.echo(f"{row['name']:20} {click.style(row['state'], fg=colour):20} {', '.join(row['provides'])}")
            if row["why"]:
                click.echo(f"{'':20} {plain(row['why'])} ({plain(row['origin'])})")
    raise SystemExit(1 if any(row["state"] == "broken" for row in rows) else 0)


def _load() -> list[dict[str, Any]]:
    from ..host.clock import SystemClock
    from ..pluginloader import LocalHost, discover

    paths = local_paths()
    found = discover(paths)
    made = found.build({}, LocalHost(paths=paths, clock=SystemClock(paths)))
    return [to_json(report) for report in made.reports]
