"""`bandog services restore`: take back what a relaunch put in force for a service."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import click

from ..host.systemd import SystemdBus
from ..host.systemd_types import JobOutcome, SystemdError
from ..pluginloader import load_catalogue
from ..services import overrides
from ..services.registry import Registry, Service
from .configured import configuration
from .operate import JSON_OPTION
from .output import plain
from .place import local_paths

# A stop may take its time; the start of a model takes minutes and is waited for by nobody here.
_JOB = timedelta(minutes=5)


@click.command()
@click.argument("name")
@click.option("--restart", is_flag=True, help="Restart the unit too; without it the next start of the unit applies it.")
@JSON_OPTION
def restore(name: str, restart: bool, as_json: bool) -> None:
    """Let service NAME run as its own files say.

    Drops the environment that a relaunch put in force. A card that is kept out stays so (see `bandog gpu`), and the
    next relaunch or boot leaves it out again. Needs root and no daemon.
    """
    paths = local_paths()
    registry = Registry(configuration(paths, load_catalogue(paths)).services)
    try:
        service = registry.get(name)
    except KeyError as error:
        known = ", ".join(one.name for one in registry) or "none"
        raise click.UsageError(f"there is no service {name!r}; known: {known}") from error
    was = _drop(paths.run, service)
    said = f"dropped: {service.name} {was}" if was else f"{service.name} runs as its own files say"
    job = None
    if restart:
        job = asyncio.run(_restart(SystemdBus.of_host(paths), service.unit))
        said += f"; {service.unit} was restarted" if job.done else f"; the restart ended {job.result}: {job.why}"
    elif was:
        said += f"; the next start of {service.unit} applies it (--restart does it now)"
    if as_json:
        answer = {"service": service.name, "unit": service.unit, "was": was, "job": job.result if job else None}
        click.echo(json.dumps({**answer, "text": said}))
    else:
        click.echo(plain(said))
    raise SystemExit(0 if job is None or job.done else 1)


def _drop(run: Path, service: Service) -> str:
    """Drop what is in force and return what it was, "" where nothing was."""
    was = overrides.in_force(run, service.unit)
    try:
        dropped = overrides.drop(run, service.unit)
    except OSError as error:
        raise click.ClickException(f"cannot remove {overrides.path_of(run, service.unit)}: {error.strerror}") from error
    return str(was) if was is not None and dropped else ""


async def _restart(systemd: SystemdBus, unit: str) -> JobOutcome:
    try:
        return await systemd.restart(unit, deadline=_JOB)
    except SystemdError as error:
        return JobOutcome(result=error.kind, why=str(error))
    finally:
        systemd.close()
