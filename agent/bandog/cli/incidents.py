"""`bandog incidents` and `bandog show`: the record, read from the database with or without the daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ..domain.codec import to_json
from ..domain.model import StepState
from ..runtime.report import incident_line, waits
from .operate import JSON_OPTION
from .output import COLOURS, console, shown
from .place import local_paths
from .record import open_record

if TYPE_CHECKING:
    from rich.table import Table


def table(rows: list[dict[str, Any]]) -> Table:
    """Return incidents as a rich table."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("id", "opened", "severity", "state", "policy", "subject", "services", "n", "what"):
        grid.add_column(column, overflow="fold", no_wrap=column in ("id", "opened", "severity", "state", "n"))
    for row in rows:
        colour = COLOURS.get(row["severity"], "")
        grid.add_row(
            f"#{row['id']}",
            row["opened"][:16].replace("T", " "),
            f"[{colour}]{row['severity']}[/]",
            row["state"] + (" (drill)" if row["drill"] else ""),
            shown(row["policy"]),
            shown(row["subject"]),
            shown(", ".join(row["services"])),
            str(row["findings"]),
            shown(f"{row['why']} ({row['waits']})" if row["waits"] else row["why"]),
        )
    return grid


@click.command()
@click.option("--open", "only_open", is_flag=True, help="Only those that have not ended.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@JSON_OPTION
def incidents(only_open: bool, limit: int, as_json: bool) -> None:
    """List incidents, the newest first. Exit code 1 if one is open."""
    with open_record() as reader:
        rows = [incident_line(one) for one in reader.incidents(only_open=only_open, limit=limit)]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    elif rows:
        console().print(table(rows))
    else:
        click.echo("no incidents")
    raise SystemExit(1 if any(row["state"] in ("open", "stuck", "unresolved") for row in rows) else 0)


@click.command()
@click.argument("incident", type=int)
@JSON_OPTION
def show(incident: int, as_json: bool) -> None:
    """Show one incident in full.

    What was seen, what was done, whether it helped, in order of time.
    """
    with open_record() as reader:
        found = reader.incident(incident)
        if found is None:
            raise click.ClickException(f"there is no incident #{incident}; bandog incidents lists them")
        events = reader.events(incident)
        requests = reader.requests(incident)
    if as_json:
        document = {
            "incident": to_json(found),
            "waits": waits(found),
            "events": [to_json(one) for one in events],
            "requests": [to_json(one) for one in requests],
        }
        click.echo(json.dumps(document))
        return

    out = console()
    drill = " [DRILL]" if found.drill else ""
    out.print(f"[bold]#{found.id}{drill} {shown(found.policy)}[/] on {shown(found.subject)}")
    out.print(f"  {found.severity.value}, {found.state.value}; {found.findings} findings; {shown(found.why)}")
    if waits(found):
        out.print(f"  {waits(found)}")
    if found.services:
        out.print(f"  services: {shown(', '.join(found.services))}")
    for name, value in found.facts.items():
        out.print(f"  {shown(name)}: {shown(to_json(value))}")
    out.print("\n[bold]Timeline[/]")
    for event in sorted(events, key=lambda one: one.at.utc):
        out.print(f"  {event.at.utc:%Y-%m-%d %H:%M:%S}  {event.what:13} {shown(event.why)}")
    for request in requests:
        place = f" of {request.request.service}" if request.request.service else ""
        # What disrupts nothing has nothing to prove either.
        proved = request.state is StepState.PROVED and not request.request.disruptive
        state = "done" if proved else request.state.value
        out.print(
            f"  request {request.request.id}: {shown(request.request.action + place)}: {state} {shown(request.why)}"
        )
    folder = local_paths().state / "evidence" / str(found.id)
    if folder.is_dir():
        out.print(f"\nevidence: {folder}")
