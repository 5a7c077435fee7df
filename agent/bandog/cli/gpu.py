"""`bandog gpu`: the cards of this host, kept out of use and taken back by hand, and what each went through."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ..domain.codec import to_json
from ..domain.gpus import GpuEvent, UnknownGpu
from ..host.clock import SystemClock
from ..runtime.gpu_lines import exclusion_line, exclusion_words, gpu_lines
from ..services.inventory import Inventory
from .client import NotRunning, call, demand
from .operate import JSON_OPTION, operator, say
from .output import console, plain, shown
from .place import local_paths
from .record import open_record

if TYPE_CHECKING:
    from rich.console import Console

ADDRESS = click.argument("address", metavar="ADDRESS")


@click.group()
def gpu() -> None:
    """Show GPUs, keep one out of use, return it.

    ADDRESS is a PCI address in any spelling (0000:e5:00.0, e5:00, NVML's 00000000:E5:00.0) or a UUID. An index is
    refused: indices shift when a card is missing.
    """


@gpu.command("list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List every card ever seen on this host.

    Reads the database where the daemon does not run. Exit code 1 if a card is missing or kept out.
    """
    try:
        lines = call(local_paths(), "gpu_list")
    except NotRunning as error:
        with open_record() as reader:
            events = {one.uuid: reader.gpu_events(one.uuid) for one in reader.gpus()}
            lines = gpu_lines(reader.gpus(), None, history=lambda uuid: events.get(uuid, ()))
        for line in lines:
            line["health"] = f"unknown: {error}"
    if as_json:
        for line in lines:
            click.echo(json.dumps(line))
    elif lines:
        print_gpus(console(), lines)
    else:
        click.echo("no GPU has been seen on this host")
    bad = [one for one in lines if one["exclusion"] or (one["expected"] and one["health"] == "missing")]
    raise SystemExit(1 if bad else 0)


@gpu.command()
@ADDRESS
@click.option("--reason", required=True, help="Why; everyone who looks sees it.")
@JSON_OPTION
def exclude(address: str, reason: str, as_json: bool) -> None:
    """Keep a card out of use until it is returned.

    A relaunch and every later start of a service with profiles leave it out. What runs on it goes on running.
    """
    say(demand(local_paths(), "gpu_exclude", address=address, reason=reason, by=operator()), as_json)


@gpu.command("return")
@ADDRESS
@JSON_OPTION
def return_(address: str, as_json: bool) -> None:
    """Return a card to use, on your word that it is fit.

    Ends an exclusion or a probation. The card starts anew: its next fault is not final.
    """
    say(demand(local_paths(), "gpu_return", address=address, by=operator()), as_json)


@gpu.command()
@ADDRESS
@JSON_OPTION
def forget(address: str, as_json: bool) -> None:
    """Expect a card no more after it was taken out.

    It is no longer missing. Its history stays, and its exclusion too should it come back.
    """
    say(demand(local_paths(), "gpu_forget", address=address, by=operator()), as_json)


@gpu.command()
@ADDRESS
@JSON_OPTION
def history(address: str, as_json: bool) -> None:
    """Show what happened to a card, for months back."""
    with open_record() as reader:
        try:
            card = Inventory(SystemClock(local_paths()), known=reader.gpus()).find(address)
        except UnknownGpu as error:
            raise click.ClickException(plain(error)) from None
        events = reader.gpu_events(card.uuid)
    if as_json:
        click.echo(json.dumps({"gpu": to_json(card), "events": [to_json(one) for one in events]}))
        return
    out = console()
    out.print(f"[bold]{shown(card.slot)}[/] {shown(card.name)}")
    for name, value in (("UUID", card.uuid), ("serial", card.serial), ("part number", card.part_number)):
        out.print(f"  {name}: {shown(value or 'not told by the driver')}")
    out.print(f"  first seen {card.first_seen.utc:%Y-%m-%d}, last seen {card.last_seen.utc:%Y-%m-%d %H:%M} UTC")
    for one in card.exclusions:
        out.print(f"  {shown(exclusion_words(exclusion_line(one)))}")
    for event in events:
        out.print(f"  {event.at.utc:%Y-%m-%d %H:%M:%S}  {event.what:16} {shown(_data(event))}")


def print_gpus(out: Console, lines: list[dict[str, Any]]) -> None:
    """Print one paragraph a card: who it is and how it is, who uses it, why it is kept out, what it went through."""
    for one in lines:
        colour = "green" if one["usable"] else "yellow" if one["present"] else "red"
        serial = f"serial {shown(one['serial'])}" if one["serial"] else "no serial told"
        services = f"  {shown(', '.join(one['services']))}" if one["services"] else ""
        name = shown(one["name"] or "GPU")
        out.print(f"  [bold]{one['address']}[/]  {name}  {serial}  [{colour}]{shown(one['health'])}[/]{services}")
        if one["exclusion"]:
            out.print(f"    [yellow]{shown(exclusion_words(one['exclusion']))}[/]")
        if one["lemon"]:
            out.print("    [red]lemon: kept out three times within four weeks; ask for a replacement[/]")
        if one["history"]:
            out.print(f"    {shown(one['history'])}")


def _data(event: GpuEvent) -> str:
    return ", ".join(f"{name} {value}" for name, value in event.data.items() if name != "last" and value != "")
