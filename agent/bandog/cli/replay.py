"""`bandog replay`: what bandog would have done, from a log file, the journal or an earlier boot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import Config
from ..config.types import parse_duration
from ..domain.budgets import Ledger, Limits
from ..domain.codec import to_json
from ..domain.engine import Engine
from ..domain.model import Instant, StepState
from ..host.clock import SystemClock
from ..host.paths import Paths
from ..pluginloader import LocalHost, Plugins, discover
from ..runtime.replaying import Moment, Replay
from ..services.registry import Registry
from .configured import configuration
from .operate import JSON_OPTION
from .output import plain
from .place import local_paths

if TYPE_CHECKING:
    from rich.progress import Progress


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True, exists=True))
@click.option("--boot", default=None, metavar="ID", help="Replay a boot of the journal: 0, -1, or a boot id.")
@click.option("--since", default=None, metavar="AGO", help="Replay the journal's kernel lines of the last 2h, 7d …")
@click.option("--mode", type=click.Choice(["observe", "enforce"]), help="Instead of the configured mode.")
@click.option(
    "--assume",
    type=click.Choice(["proved", "failed"]),
    default="proved",
    show_default=True,
    help="How an act would have ended, in enforce mode.",
)
@click.option("--after", default="0s", metavar="TIME", help="Let so much time pass after the last line.")
@click.option(
    "--config", "config_dir", type=click.Path(path_type=Path, file_okay=False), help="Instead of /etc/bandog."
)
@JSON_OPTION
def replay(
    file: Path | None,
    boot: str | None,
    since: str | None,
    mode: str | None,
    assume: str,
    after: str,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """Play a log through the real engine.

    Give one of FILE (- is standard input), --boot and --since; the clock is that of the lines.

    Prints the timeline, the actions that would have been taken, and the budget that they would have
    used. Nothing acts and no daemon is needed. Exit code 1 if an incident was opened.
    """
    if sum(one is not None for one in (file, boot, since)) != 1:
        raise click.UsageError("give one of FILE, --boot ID or --since AGO")
    try:
        rest = parse_duration(after)
        back = parse_duration(since) if since is not None else None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    paths = local_paths(config_dir)
    config, plugins = _load(paths)
    run = _replay(config, plugins, mode, assume, _printer(as_json))
    if file is not None:
        _read_file(file, run, SystemClock(paths).now().utc)
    else:
        _read_journal(paths, run, boot, back)
    run.end(rest)
    _summary(run, as_json)
    raise SystemExit(1 if run.tally.incidents else 0)


def _load(paths: Paths) -> tuple[Config, Plugins]:
    found = discover(paths)
    config = configuration(paths, found.catalogue)
    host = LocalHost(paths=paths, clock=SystemClock(paths))
    return config, found.build(config.plugins, host)


def _replay(config: Config, plugins: Plugins, mode: str | None, assume: str, tell: Callable[[Moment], None]) -> Replay:
    from ..config.catalogue import build_catalogue

    traits = build_catalogue((), [type(one) for one in plugins.actions.values()]).traits
    return Replay(
        Engine(config.policies, traits, host="replay"),
        plugins.detectors,
        Ledger(Limits.of(config.budgets)),
        Registry(config.services),
        mode=mode or config.mode,
        assume=StepState.PROVED if assume == "proved" else StepState.FAILED,
        tell=tell,
    )


def _read_file(file: Path, run: Replay, today: datetime) -> None:
    from ..sources.text import TextReader
    from ..sources.text_file import LogUnreadable, open_log

    reader = TextReader(
        needles=_needles(run),
        feed=run.feed,
        flush=run.flush,
        is_open=run.is_open,
        today=today,
    )
    try:
        with open_log(str(file)) as stream, _progress(file) as bar:
            task = bar.add_task("replay", total=file.stat().st_size if str(file) != "-" else None)
            reader.read(stream, progress=lambda done: bar.advance(task, done))
    except LogUnreadable as error:
        raise click.UsageError(f"cannot read {error}") from error
    reader.close()


def _needles(run: Replay) -> list[bytes]:
    return sorted({needle for one in run.detectors for needle in one.needles})


def _progress(file: Path) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    long = str(file) != "-" and file.stat().st_size > 5 << 20
    return Progress(console=Console(stderr=True), transient=True, disable=not (long and sys.stderr.isatty()))


def _read_journal(paths: Paths, run: Replay, boot: str | None, back: timedelta | None) -> None:
    from ..sources.journal import JournalUnavailable, kernel_records

    try:
        for record in kernel_records(paths, boot=boot, back=back, needles=_needles(run), is_open=run.is_open):
            run.feed(record)
            if run.is_open():
                run.flush(record.at)
    except JournalUnavailable as error:
        raise click.ClickException(str(error)) from error


def _printer(as_json: bool) -> Callable[[Moment], None]:
    def tell(moment: Moment) -> None:
        change = moment.change
        if as_json:
            click.echo(json.dumps(_document(moment)))
        elif change.what not in ("finding", "step-waiting"):
            stamp = _stamp(moment.at)
            place = f" line {moment.line}" if moment.line else ""
            what = f"{change.action} {change.what}" if change.action else change.what
            number = click.style(f"#{change.incident.id}", bold=True)
            subject, why = plain(change.incident.subject), plain(change.why)
            click.echo(f"{stamp}{place} {number} {change.incident.policy} {subject}: {what} {why}")

    return tell


def _stamp(at: Instant) -> str:
    """Return the wall clock of a line, or the time since boot where the log tells no other."""
    from ..sources.text_time import told_wall

    if told_wall(at):
        return f"{at.utc:%Y-%m-%d %H:%M:%S}"
    return f"[{at.boottime.total_seconds():12.3f}]"


def _document(moment: Moment) -> dict[str, Any]:
    change = moment.change
    document = {
        "at": to_json(moment.at.utc),
        "line": moment.line,
        "incident": change.incident.id,
        "policy": change.incident.policy,
        "subject": change.incident.subject,
        "what": change.what,
        "action": change.action,
        "end": to_json(change.end),
        "why": change.why,
    }
    return {name: value for name, value in document.items() if value is not None}


def _summary(run: Replay, as_json: bool) -> None:
    usage = []
    if run.now is not None:
        for shadow in (False, True):
            usage += [(one, shadow) for one in run.ledger.usage(run.now, shadow=shadow)]
    if as_json:
        tally = {
            "records": run.tally.records,
            "findings": run.tally.findings,
            "incidents": run.tally.incidents,
            "would": run.tally.would,
            "exhausted": run.tally.exhausted,
            "budgets": [{**to_json(one), "shadow": shadow} for one, shadow in usage],
        }
        click.echo(json.dumps({"summary": tally}))
        return
    acts = ", ".join(f"{count} × {name}" for name, count in sorted(run.tally.would.items())) or "none"
    click.echo(
        f"\n{run.tally.findings} findings, {run.tally.incidents} incidents; disruptive actions: {acts}"
        + (f"; {run.tally.exhausted} refused by a budget" if run.tally.exhausted else "")
    )
    for one, shadow in usage:
        click.echo(f"  budget {one.key}{' (observed)' if shadow else ''}: {one.used:g} of {one.limit:g}")
