"""`bandog status`: what is watched, what is not and why, what is open, how much budget is left."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

from ..domain.policy import format_duration
from . import output
from .client import NotRunning, call
from .operate import JSON_OPTION
from .output import shown
from .place import local_paths


@click.command()
@JSON_OPTION
def status(as_json: bool) -> None:
    """Show what is watched, open and left.

    The state of the agent, its sources, services, incidents and budgets.

    Exit code 1 if the agent does not run or an incident is open.
    """
    try:
        answer = call(local_paths(), "status")
    except NotRunning as error:
        if as_json:
            click.echo(json.dumps({"running": False, "why": str(error)}))
        else:
            click.secho(f"not running: {error}", fg="red")
        raise SystemExit(1) from None
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer)
    raise SystemExit(1 if answer["incidents"] else 0)


def _print(answer: dict[str, Any]) -> None:

    console = output.console()
    console.print(f"[bold]bandog {answer['version']}[/] on {shown(answer['host'])}, mode {_mode(answer)}")
    for hold in answer["holds"]:
        until = f"{hold['until'][:16].replace('T', ' ')} UTC" if hold["until"] else "released"
        console.print(
            f"[yellow]held[/] {shown(hold['target'])} by {shown(hold['by'])} until {until}: {shown(hold['reason'])}"
        )
    if answer["store"]["stuck"]:
        console.print(f"[red]the store does not write since {answer['store']['stuck']:.0f} s: nothing will act[/]")
    _sources(console, answer["sources"], answer["plugins"])
    _gpus(console, answer["gpus"])
    _services(console, answer["services"])
    _incidents(console, answer["incidents"])
    _budgets(console, answer["budgets"], answer["would"])


def _mode(answer: dict[str, Any]) -> str:
    if answer["breaker"]:
        return f"[red]observe[/]: {shown(answer['breaker'])} (bandog rearm)"
    mode = answer["mode"] if isinstance(answer["mode"], str) else ", ".join(answer["mode"])
    return f"[bold]{mode}[/]"


def _sources(console: Any, sources: list[dict[str, Any]], plugins: list[dict[str, Any]]) -> None:

    console.print("\n[bold]Sources[/]")
    for one in sources:
        if one["state"] == "watched":
            counts = ", ".join(f"{value} {key}" for key, value in one["counts"].items() if value)
            console.print(f"  [green]✓[/] {shown(one['name'])}  {counts}")
        else:
            console.print(f"  [red]✗[/] {shown(one['name'])}  not watched: {shown(one['why'])}")
    named = {one["name"] for one in sources}
    for one in plugins:
        if one["state"] == "off":
            console.print(f"  [dim]- plugin {shown(one['name'])} off: {shown(one['why'])}[/]")
        elif one["state"] != "loaded" and one["name"] not in named:
            console.print(f"  [yellow]![/] plugin {shown(one['name'])} {one['state']}: {shown(one['why'])}")


def _gpus(console: Any, gpus: list[dict[str, Any]]) -> None:
    from .gpu import print_gpus

    if gpus:
        console.print("\n[bold]GPUs[/]")
        print_gpus(console, gpus)


def _services(console: Any, services: list[dict[str, Any]]) -> None:

    console.print("\n[bold]Services[/]")
    if not services:
        console.print("  none; tell bandog of one in /etc/bandog/services.d/")
    for one in services:
        console.print(f"  {shown(one['name'])}  {shown(one['unit'])}  {shown(one['state'])}")
        if one["override"]:
            console.print(f"    [yellow]{shown(one['override'])}[/] (bandog services restore {shown(one['name'])})")


def _incidents(console: Any, incidents: list[dict[str, Any]]) -> None:
    from .incidents import table

    console.print("\n[bold]Incidents[/]")
    if incidents:
        console.print(table(incidents))
    else:
        console.print("  none open")


def _budgets(console: Any, budgets: list[dict[str, Any]], would: int) -> None:
    console.print("\n[bold]Budgets[/]")
    for one in budgets:
        per = format_duration(timedelta(seconds=one["per"]))
        console.print(f"  {shown(one['key'])}  {one['used']:g} of {one['limit']:g} per {per}")
    if would:
        console.print(f"  {would} actions would have been taken in enforce mode")
