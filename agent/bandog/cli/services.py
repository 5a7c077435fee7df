"""`bandog services`: operate the services by hand, in order and gated on readiness."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable

import click

from ..domain.codec import to_json
from ..host.child import Children
from ..host.clock import SystemClock
from ..host.hostname import short_hostname
from ..host.http import HttpClient
from ..host.site import Readiness
from ..host.systemd import SystemdBus
from ..pluginloader import load_catalogue
from ..runtime.keys import Keys
from ..runtime.secrets import Secrets
from ..services import start_order
from ..services.readiness import ServiceBook
from ..services.registry import Registry, Service
from ..site import LocalSite
from .configured import configuration
from .operate import JSON_OPTION
from .place import local_paths
from .restore import restore

COLOURS = {"started": "green", "already": "green", "failed": "red", "not-tried": "yellow"}


@click.group()
def services() -> None:
    """Start the services in order, take back a relaunch."""


services.add_command(restore)


@services.command()
@click.argument("names", nargs=-1, metavar="[SERVICE]…")
@click.option("--dry-run", is_flag=True, help="Say what would be started, in order, and start nothing.")
@JSON_OPTION
def start(names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Start SERVICE…, or all, in order.

    The order is that of `start: {order: N}`. Each is waited for until it is ready and has settled; the
    first that fails ends the start. Needs no daemon. Exit code 1 if one does not serve.
    """
    paths = local_paths()
    registry = Registry(configuration(paths, load_catalogue(paths)).services)
    try:
        chosen = start_order.plan(registry, names)
    except KeyError as error:
        known = ", ".join(one.name for one in registry) or "none"
        raise click.UsageError(f"there is no service {error.args[0]!r}; known: {known}") from error
    if not chosen:
        click.echo("no service is configured: /etc/bandog/services.d holds none", err=True)
    if dry_run:
        for line in start_order.describe(chosen):
            _tell(line, as_json)
        return
    started = asyncio.run(_start(registry, chosen, lambda line: _tell(line, as_json)))
    raise SystemExit(0 if started.ok else 1)


async def _start(
    registry: Registry, chosen: tuple[Service, ...], tell: Callable[[start_order.Line], None]
) -> start_order.Started:
    paths = local_paths()
    clock = SystemClock(paths)
    systemd = SystemdBus.of_host(paths)
    children = Children()

    async def no_note(*_: object) -> None:
        """There is no request to note anything on."""

    site = LocalSite(
        paths=paths,
        clock=clock,
        systemd=systemd,
        children=children,
        http=HttpClient(),
        hostname=short_hostname(paths),
        loop=asyncio.get_running_loop(),
        note=no_note,
        tell=lambda *_: None,
    )
    book = ServiceBook(registry, site, Keys(paths.etc, os.environ, Secrets()))

    def ask(name: str) -> Awaitable[Readiness]:
        return asyncio.to_thread(book.ready, name)

    try:
        return await start_order.start(chosen, systemd=systemd, ready=ask, clock=clock, report=tell)
    finally:
        systemd.close()
        children.close()


def _tell(line: start_order.Line, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(to_json(line)))
        return
    word = line.progress.value
    click.echo(f"{line.service:20} {click.style(word, fg=COLOURS.get(word)):20} {line.why}")
