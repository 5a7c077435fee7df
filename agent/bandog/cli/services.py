"""`bandog services`: operate the services by hand, in order and gated on what they serve."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ..config import Config
from ..domain.codec import to_json
from ..host.paths import Paths
from ..pluginloader import PluginSet, discover
from ..services import adopt_record, start_order
from ..services.registry import Registry, Service
from ..services.start_means import HostMeans
from ..services.start_one import Start
from .configured import configuration
from .local_site import local_site
from .operate import JSON_OPTION
from .output import plain
from .place import local_paths
from .restore import restore

COLOURS = {"started": "green", "already": "green", "failed": "red", "waiting": "yellow", "slow": "yellow"}
LOCK = "start.lock"


@click.group()
def services() -> None:
    """Start the services in order, take back a relaunch."""


services.add_command(restore)


@services.command()
@click.argument("names", nargs=-1, metavar="[SERVICE]…")
@click.option("--dry-run", is_flag=True, help="Say what would be started, in order, and start nothing.")
@click.option(
    "--adopted",
    is_flag=True,
    help="Only units whose start at boot `bandog adopt` took over; 0 once each was tried. For bandog-services.service.",
)
@JSON_OPTION
def start(names: tuple[str, ...], dry_run: bool, adopted: bool, as_json: bool) -> None:
    """Start SERVICE…, or all, in order.

    The order is that of `start: {order: N}`. Each waits until memory that others hold is free, and is waited for until
    it is ready, answers its canary, its GPU memory has come to rest, and it has settled; one that makes progress is
    given up to two hours, and none is ever stopped. One that fails keeps nobody else down. Needs no daemon. Exit code 1
    if one does not serve.
    """
    paths = local_paths()
    plugins = discover(paths)
    config = configuration(paths, plugins.catalogue)
    registry = Registry(config.services)
    units = {one.unit for one in adopt_record.records(paths) if one.starts} if adopted else None
    try:
        chosen = start_order.plan(registry, names, units=units)
    except KeyError as error:
        known = ", ".join(one.name for one in registry) or "none"
        raise click.UsageError(f"there is no service {error.args[0]!r}; known: {known}") from error
    if not chosen and not adopted:
        click.echo("no service is configured: /etc/bandog/services.d holds none", err=True)
    if dry_run:
        for line in start_order.describe(chosen):
            _tell(line, as_json)
        return
    with _alone(paths, wait=adopted):
        started = asyncio.run(_start(paths, config, plugins, chosen, lambda line: _tell(line, as_json)))
    left = sorted(units - {one.unit for one in chosen}) if units is not None and not names else []
    if left:
        # Nobody else starts them any more: the plain start that follows a failure of ours does.
        raise click.ClickException(f"adopted, and no service names it: {', '.join(left)}")
    raise SystemExit(0 if started.ok or adopted else 1)


async def _start(
    paths: Paths,
    config: Config,
    plugins: PluginSet,
    chosen: tuple[Service, ...],
    tell: Callable[[start_order.Line], None],
) -> start_order.Started:
    async with local_site(paths, config, plugins) as local:
        means = HostMeans(local.site, local.book.registry, local.look)
        slots = {one.uuid: one.slot for one in local.site.gpus.known()}
        return await start_order.start(chosen, lambda one: Start(one, means, tell).run(), slots=slots)


@contextmanager
def _alone(paths: Paths, *, wait: bool) -> Iterator[None]:
    """Keep a second start out, or `wait` for its end: two would start two services at once."""
    try:
        paths.run.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(paths.run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise click.ClickException(f"cannot open {paths.run / LOCK}: {error.strerror}; run it as root") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise click.ClickException("the services are being started already (bandog-services.service?)") from None
    try:
        yield
    finally:
        os.close(lock)


def _tell(line: start_order.Line, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(to_json(line)))
        return
    word = line.progress.value
    click.echo(f"{line.service:20} {click.style(word, fg=COLOURS.get(word)):20} {plain(line.why)}")
