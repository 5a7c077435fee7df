"""Commands by which a person steers the daemon: hold, release, ack, rearm, notify-test."""

from __future__ import annotations

import json
import os
import pwd
from datetime import timedelta

import click

from ..config.types import parse_duration
from .client import demand
from .output import plain
from .place import local_paths

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def operator() -> str:
    """Return who gives the order, through sudo too."""
    name = os.environ.get("SUDO_USER")
    if name:
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def say(answer: dict[str, object], as_json: bool) -> None:
    """Print what the daemon answered to an order."""
    click.echo(json.dumps(answer) if as_json else plain(answer["text"]))


@click.command()
@click.argument("words", nargs=-1, metavar="[TARGET] DURATION")
@click.option("--reason", required=True, help="Why; everyone who looks sees it.")
@JSON_OPTION
def hold(words: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Pause acting, with an end and a reason.

    No disruptive action is begun for DURATION (2h, 30m, 7d), on TARGET or the whole host. TARGET is a
    service or a policy. Findings, evidence and messages go on. The pause survives reboots and ends by
    itself; `bandog release` ends it earlier.
    """
    if not 1 <= len(words) <= 2:
        raise click.UsageError("expected: bandog hold [TARGET] DURATION --reason TEXT")
    target, text = ("*", words[0]) if len(words) == 1 else words
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    answer = demand(
        local_paths(), "hold", target=target, seconds=duration.total_seconds(), reason=reason, by=operator()
    )
    say(answer, as_json)


@click.command()
@click.argument("target", default="*")
@JSON_OPTION
def release(target: str, as_json: bool) -> None:
    """End the pause on TARGET or the whole host."""
    say(demand(local_paths(), "release", target=target, by=operator()), as_json)


@click.command()
@click.argument("incident", type=int)
@JSON_OPTION
def ack(incident: int, as_json: bool) -> None:
    """Take over an incident.

    No further step is begun and nobody is reminded; the record goes on.
    """
    say(demand(local_paths(), "ack", incident=incident, by=operator()), as_json)


@click.command()
@JSON_OPTION
def rearm(as_json: bool) -> None:
    """Arm bandog again.

    After the breaker tripped, or the state was lost. What was only observed meanwhile is not made up
    for: each incident that still waits like that is listed, and goes on with its next finding.
    """
    answer = demand(local_paths(), "rearm", by=operator())
    say(answer, as_json)
    for one in () if as_json else answer["waiting"]:
        click.echo(plain(f"#{one['id']} {one['policy']} on {one['subject']}: {one['waits']} ({one['why']})"))


@click.command("notify-test")
@click.argument("targets", nargs=-1)
@JSON_OPTION
def notify_test(targets: tuple[str, ...], as_json: bool) -> None:
    """Send a test message.

    To TARGETS, or to every target of the configuration.
    """
    answer = demand(local_paths(), "notify_test", timedelta(minutes=2), targets=list(targets), by=operator())
    if as_json:
        click.echo(json.dumps(answer))
    else:
        for line in answer["lines"]:
            click.echo(plain(line))
    raise SystemExit(0 if answer["ok"] else 1)
