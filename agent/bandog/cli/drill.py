"""`bandog drill`: send a test finding through the living daemon."""

from __future__ import annotations

import click

from .client import demand
from .operate import JSON_OPTION, operator, say
from .place import local_paths


@click.command()
@click.argument("kinds", nargs=-1, required=True, metavar="KIND…")
@click.option("--service", required=True, help="The service that the drill pretends to hurt.")
@click.option("--subject", default=None, help="What the finding is about; the service by default.")
@click.option("--fact", "facts", multiple=True, metavar="NAME=VALUE", help="A fact of the finding; repeatable.")
@click.option("--really", is_flag=True, help="Let the ladder act, under the same gates and budgets.")
@JSON_OPTION
def drill(
    kinds: tuple[str, ...],
    service: str,
    subject: str | None,
    facts: tuple[str, ...],
    really: bool,
    as_json: bool,
) -> None:
    """Send a fault as an exercise to the daemon.

    Findings of KIND, marked as a test, go the way of real ones.

    People are told, and every message says that it is a drill. Nothing acts without --really.
    Example: bandog drill nvidia.xid --service qwen --fact xid=94
    """
    pairs = {}
    for item in facts:
        name, sign, value = item.partition("=")
        if not sign:
            raise click.UsageError(f"--fact {item!r}: expected NAME=VALUE")
        pairs[name] = int(value) if value.lstrip("-").isdigit() else value
    answer = demand(
        local_paths(),
        "drill",
        kinds=list(kinds),
        service=service,
        subject=subject,
        facts=pairs,
        really=really,
        by=operator(),
    )
    say(answer, as_json)
