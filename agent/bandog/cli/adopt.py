"""`bandog adopt`: let bandog manage a unit, by a drop-in and a service file that are shown before they are written."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from ..config import Config, load
from ..host.child import Children
from ..host.paths import Paths
from ..host.systemd import SystemdBus
from ..host.systemd_types import SystemdError, UnitState
from ..pluginloader import PluginSet, discover
from ..services import adopt_plan, overrides
from ..services.adopt_locate import model_folder
from ..services.adopt_model import Model, read_model
from ..services.adopt_record import is_sound, record_of
from ..services.adopt_unit import Found, Refused, check_name, read_unit
from ..services.adopt_write import carry_out, diff
from ..services.registry import Registry
from .codes import BAD_CONFIGURATION
from .configured import configuration
from .local_site import Local, local_site
from .operate import JSON_OPTION
from .output import plain
from .place import local_paths

STARTER = "bandog-services.service"
_CHECK = timedelta(seconds=60)
_RELOAD = timedelta(seconds=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """What was asked of the host: PID 1 on the unit and on the starter, the cards, their smallest memory."""

    unit: UnitState
    starter: UnitState
    local: Local
    memory: int | None


@click.command()
@click.argument("unit")
@click.option("--undo", is_flag=True, help="Take an adoption back: remove what it wrote, restore the start at boot.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--name", default="", help="The service's name; the unit's without it.")
@JSON_OPTION
def adopt(unit: str, undo: bool, yes: bool, dry_run: bool, name: str, as_json: bool) -> None:
    """Let bandog manage UNIT.

    Shows as a diff what it would write, and asks: a drop-in by which the unit reads bandog's environment file and its
    command line takes the tensor parallel size from a variable, and the service file with the GPU profiles that the
    model allows. The unit runs as before, also when bandog is stopped, broken or purged. Its own start at boot is
    taken over by bandog-services.service. Works for plain units, `docker run` and podman quadlets; what it cannot do
    it says. Needs root, and no daemon.
    """
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json cannot ask; add --yes or --dry-run")
    paths = local_paths()
    try:
        unit = check_name(unit)
        plan = _undoing(paths, unit) if undo else _adopting(paths, unit, name)
    except Refused as error:
        raise click.ClickException(plain(error)) from error
    changes = diff(plan, paths)
    risks = _at_risk(paths) if changes else ()
    if not as_json:
        click.echo(changes or f"{unit}: nothing to change\n", nl=False)
        for remark in plan.remarks:
            click.echo(plain(f"note: {remark}"))
        if risks:
            click.echo(f"note: systemd will not be reloaded: {plain('; '.join(risks))}")
    if changes and not dry_run and not yes and not click.confirm("Write this?"):
        raise SystemExit(1)
    done = bool(changes) and not dry_run
    reloaded = _write(plan, paths, risks) if done else False
    if as_json:
        told = {"unit": unit, "service": plan.service, "diff": changes, "remarks": list(plan.remarks)}
        click.echo(json.dumps({**told, "written": done, "reloaded": reloaded, "at_risk": list(risks)}))
    elif done:
        _tell_end(unit, undo=undo, reloaded=reloaded)
    raise SystemExit(1 if done and not reloaded else 0)


# --- what is to be done ---------------------------------------------------------------------------


def _adopting(paths: Paths, unit: str, name: str) -> adopt_plan.Plan:
    """Return what adopting writes, checked as `bandog check` would. Raises Refused."""
    plugins = discover(paths)
    config = configuration(paths, plugins.catalogue)
    host = asyncio.run(_ask(paths, config, plugins, unit))
    found = read_unit(paths, host.unit)
    registry = Registry(config.services)
    plan = adopt_plan.plan(
        found,
        adopt_plan.Surroundings(
            name=name,
            existing=registry.of_unit(unit),
            names=[one.name for one in registry],
            record=record_of(paths, unit),
            starts=host.starter.unit_file_state == "enabled",
            cards=host.local.site.gpus.known(),
            model=_model(paths, found),
            memory=host.memory,
            etc=paths.named(paths.etc),
            run=paths.named(paths.run),
        ),
    )
    _check(paths, plan, plugins)
    return plan


async def _ask(paths: Paths, config: Config, plugins: PluginSet, unit: str) -> _Host:
    async with local_site(paths, config, plugins) as local:
        try:
            state = await local.site.systemd.unit(unit)
            starter = await local.site.systemd.unit(STARTER)
        except SystemdError as error:
            raise Refused(f"systemd did not answer: {error}") from error
        await asyncio.to_thread(local.look)
        look = local.site.gpus.look()
        sizes = [one.memory_total for one in (look.gpus if look is not None else ()) if one.memory_total]
        return _Host(unit=state, starter=starter, local=local, memory=min(sizes, default=None))


def _model(paths: Paths, found: Found) -> Model | None:
    command = adopt_plan.command_of(found)
    folder = model_folder(paths, found, command) if command is not None and command.engine else None
    if folder is None:
        return None
    try:
        return read_model(folder)
    except ValueError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"cannot read {folder}/config.json: {error.strerror}") from error


def _check(paths: Paths, plan: adopt_plan.Plan, plugins: PluginSet) -> None:
    """End with 78 where the configuration would have a mistake with the new service file in it."""
    with tempfile.TemporaryDirectory(prefix="bandog-adopt-") as name:
        folder = Path(name)
        (folder / adopt_plan.SERVICES).mkdir()
        for one in _entries(paths.etc):
            if one.name != adopt_plan.SERVICES:
                (folder / one.name).symlink_to(one)
        for one in _entries(paths.etc / adopt_plan.SERVICES):
            (folder / adopt_plan.SERVICES / one.name).symlink_to(one)
        for change in plan.changes:
            if paths.at(change.path).parent == paths.etc / adopt_plan.SERVICES and change.text is not None:
                place = folder / adopt_plan.SERVICES / Path(change.path).name
                place.unlink(missing_ok=True)
                place.write_text(change.text, "utf-8")
        errors = load(paths, plugins=plugins.catalogue, config_dir=folder).errors
    for problem in errors:
        click.echo(str(problem), err=True)
    if errors:
        click.echo("nothing was written", err=True)
        raise SystemExit(BAD_CONFIGURATION)


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(one.absolute() for one in folder.iterdir())
    except OSError:
        return ()


def _undoing(paths: Paths, unit: str) -> adopt_plan.Plan:
    record = record_of(paths, unit)
    if record is None:
        raise Refused(f"{unit} is not adopted")
    if not is_sound(record):
        raise Refused(f"{record.place} was changed: its `#@` lines name what no adoption makes; remove it by hand")
    own = overrides.path_of(paths.run, unit)
    return adopt_plan.undo(record, [paths.named(own)] if own.exists() else [])


# --- doing it -------------------------------------------------------------------------------------


def _write(plan: adopt_plan.Plan, paths: Paths, risks: tuple[str, ...]) -> bool:
    """Write, and reload systemd where nobody loses by it; return whether it was reloaded."""
    try:
        carry_out(plan, paths)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}; run it again as root") from error
    return not risks and asyncio.run(_reload(paths))


async def _reload(paths: Paths) -> bool:
    systemd = SystemdBus.of_host(paths)
    try:
        await systemd.reload(deadline=_RELOAD)
    except SystemdError as error:
        click.echo(f"systemd was not reloaded: {plain(error)}", err=True)
        return False
    finally:
        systemd.close()
    return True


def _at_risk(paths: Paths) -> tuple[str, ...]:
    """Return the running containers that a reload of systemd would cut off their GPUs; not knowing is a risk too."""
    script = Path(sys.prefix) / "gpu-containers-at-risk"
    if not script.exists():
        script = Path(__file__).parents[3] / "packaging" / "gpu-containers-at-risk"
    outcome = Children().run([str(script), *_below(paths)], deadline=_CHECK)
    if outcome.ok:
        return ()
    names = tuple(outcome.out.decode("utf-8", "replace").splitlines())
    if outcome.code == 1 and names:
        return tuple(f"{one} would lose its GPUs" for one in names)
    return ("whether a container would lose its GPUs by it could not be told",)


def _below(paths: Paths) -> tuple[str, ...]:
    return () if paths.root == Path("/") else ("--root", str(paths.root))


def _tell_end(unit: str, *, undo: bool, reloaded: bool) -> None:
    click.echo(f"{unit}: {'taken back' if undo else 'adopted'}")
    if not reloaded:
        click.echo("systemd still holds the unit's old text; until then bandog leaves the unit alone. When it may be:")
        click.echo("  systemctl daemon-reload")
    if not undo:
        click.echo("The unit goes on as it is; its next start reads the drop-in. Then: systemctl reload bandog")
