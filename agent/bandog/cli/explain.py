"""`bandog explain`: what kernel lines mean, and what this configuration would do about each."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import Config, PluginCatalogue
from ..domain import subjects
from ..domain.codec import to_json
from ..domain.explain import Hurt, Setting, StepView
from ..domain.explain import explain as explain_steps
from ..domain.matching import PolicyIndex
from ..domain.model import Finding, Instant, Record, Severity
from ..domain.policy import Policy, format_duration
from ..host.clock import SystemClock
from ..plugin import LogDetector
from ..pluginloader import PluginSet, discover
from ..services.registry import Registry, Service
from ..sources.text import TextReader
from ..sources.text_file import LogUnreadable, open_log
from ..sources.text_time import told_wall
from .codes import USAGE
from .configured import configuration
from .operate import JSON_OPTION
from .output import COLOURS, console, plain
from .place import local_paths

if TYPE_CHECKING:
    from rich.console import Console

NO_SITE = Path("/nonexistent")  # systemd's word for a place where nothing is
_MOST_TEXT = 300  # of one fact, as shown to people


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|-]...")
@click.option(
    "--config", "config_dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Not /etc/bandog."
)
@click.option(
    "--policies",
    "policies_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Not the shipped policies.",
)
@click.option("--no-site", is_flag=True, help="Only what is shipped: nothing of /etc/bandog is read.")
@JSON_OPTION
def explain(
    files: tuple[str, ...], config_dir: Path | None, policies_dir: Path | None, no_site: bool, as_json: bool
) -> None:
    """Say what kernel lines mean and would lead to.

    For each line: the fault, the policy that takes it, and why its steps would or would not act.

    Reads dmesg in all its forms, journalctl (short forms and -o json), syslog files, saved /dev/kmsg
    records and bare text, also gzip or xz; without FILE, standard input. Lines of a pipe that stays open
    are explained as they come: dmesg -w | bandog explain. Needs neither root nor the daemon, and nothing
    acts. Each line is judged by itself; `bandog replay` counts and waits.

    Exit code 0 if nothing is above info, 1 if something is, 2 on wrong usage, 78 on a bad configuration.
    """
    if not files and (sys.stdin is None or sys.stdin.isatty()):  # None: it was closed
        raise click.UsageError("give a FILE, or pipe lines in: dmesg | bandog explain")
    if no_site and config_dir is not None:
        raise click.UsageError("--no-site and --config contradict each other")
    paths = local_paths(NO_SITE if no_site else config_dir)
    found = discover(paths)
    catalogue = found.catalogue
    config = configuration(
        paths, catalogue, policies_dir=policies_dir, otherwise="look without your own configuration: --no-site"
    )
    detection = Detection(_detectors(found, config))
    judge = Judge(config, catalogue)
    worst, found_any = Severity.INFO, False
    show = _shower(as_json, detection)

    def take(finding: Finding) -> None:
        nonlocal worst, found_any
        found_any = True
        worst = max(worst, finding.severity, key=lambda one: one.rank)
        show(finding, *judge(finding))

    today = SystemClock(paths).now().utc
    local = today.astimezone().tzinfo
    assert local is not None  # astimezone() always sets one
    reader = TextReader(
        needles=detection.needles,
        feed=lambda record: detection.feed(record, take),
        flush=lambda now: detection.flush(now, take),
        is_open=detection.is_open,
        today=today,
        zone=local,
    )
    for name in files or ("-",):
        try:
            with open_log(name, live=True) as stream:
                reader.read(stream)
        except LogUnreadable as error:
            click.echo(f"cannot read {error}", err=True)
            raise SystemExit(USAGE) from error
    reader.close()
    if reader.malformed:
        click.echo(f"{reader.malformed} of {reader.lines} lines are malformed and were left out", err=True)
    if not found_any and not as_json:
        click.echo(f"{reader.lines} lines read; none states a fault that a detector knows", err=True)
    raise SystemExit(0 if worst is Severity.INFO else 1)


def _detectors(found: PluginSet, config: Config) -> list[LogDetector]:
    """Return every log detector that is not switched off, whether or not this host could have it: the log
    may be another host's."""
    made: list[LogDetector] = []
    for name, cls in found.detectors.items():
        options = config.plugins.get(name, config.plugins.get(found.owners[name].name))
        if options == "off" or not issubclass(cls, LogDetector):
            continue
        try:
            made.append(cls(cls.Options.model_validate(options or {})))
        except Exception as error:  # the door of the plugin loader
            click.echo(f"plugin {name} does not start: {type(error).__name__}: {error}", err=True)
    return made


class Detection:
    """The detectors at work on a log: each gets the records that it asked for; one that fails is dropped."""

    def __init__(self, detectors: Iterable[LogDetector]) -> None:
        self.detectors = list(detectors)
        self.needles = sorted({needle for one in self.detectors for needle in one.needles})
        self._texts = {
            one.name: tuple(needle.decode("utf-8", "replace") for needle in one.needles) for one in self.detectors
        }

    def is_open(self) -> bool:
        """True while some detector wants every record."""
        return any(one.open for one in self.detectors)

    def feed(self, record: Record, take: Callable[[Finding], None]) -> None:
        """Give one record to the detectors that asked for it, and their findings to `take`."""
        for one in tuple(self.detectors):
            if one.open or any(needle in record.text for needle in self._texts[one.name]):
                self._call(one, functools.partial(one.feed, record), take)

    def flush(self, now: Instant, take: Callable[[Finding], None]) -> None:
        """Let open detectors close what has ended by `now`."""
        for one in tuple(self.detectors):
            if one.open:
                self._call(one, functools.partial(one.flush, now), take)

    def meaning(self, finding: Finding) -> str:
        """Return what the finding's detector says of it, in words."""
        for one in self.detectors:
            if one.name == finding.detector:
                return one.meaning(finding)
        return ""

    def _call(self, one: LogDetector, work: Callable[[], Iterable[Finding]], take: Callable[[Finding], None]) -> None:
        try:
            findings = list(work())
        except Exception as error:  # the door of a plugin at work
            click.echo(f"plugin {one.name} failed: {type(error).__name__}: {error}", err=True)
            self.detectors.remove(one)
            return
        for finding in findings:
            take(dataclasses.replace(finding, detector=finding.detector or one.name))


class Judge:
    """Finds the policy of a finding and what its steps would do, under one configuration."""

    def __init__(self, config: Config, catalogue: PluginCatalogue) -> None:
        self._index = PolicyIndex(config.policies)
        self._registry = Registry(config.services)
        self._setting = Setting(
            actions={name: traits for name, traits in catalogue.traits.items() if config.plugins.get(name) != "off"},
            mode=config.mode,
            targets=frozenset(config.notify),
        )

    def __call__(self, finding: Finding) -> tuple[Policy | None, tuple[StepView, ...]]:
        """Return the policy that takes `finding`, or None, and its steps."""
        policy = self._index.find(finding)
        hurt = [Hurt(name=one.name, mode=one.mode) for one in self._services(finding)]
        return policy, explain_steps(finding, policy, self._setting, hurt)

    def _services(self, finding: Finding) -> Sequence[Service]:
        """Return the services that a finding hurts, as far as a log tells: by GPU, unit or name."""
        kind, name = subjects.type_of(finding.subject), subjects.id_of(finding.subject)
        unit = finding.facts.get("unit")
        by_unit = self._registry.of_unit(unit) if isinstance(unit, str) else None
        if by_unit is not None:
            return (by_unit,)
        if kind == "gpu":
            return self._registry.on_gpu(name)
        return [one for one in self._registry if kind == "service" and one.name == name]


Show = Callable[[Finding, Policy | None, tuple[StepView, ...]], None]


def _shower(as_json: bool, detection: Detection) -> Show:
    if as_json:
        return lambda finding, policy, steps: click.echo(json.dumps(document(finding, policy, steps)))
    out, said = console(), dict[tuple[object, ...], int | None]()

    def show(finding: Finding, policy: Policy | None, steps: tuple[StepView, ...]) -> None:
        facts = finding.facts
        about = (finding.kind, facts.get("xid"), facts.get("sxid"), facts.get("reason"), facts.get("glued"))
        meaning = detection.meaning(finding) if about not in said else f"as on line {said[about]}"
        said.setdefault(about, finding.line)
        _tell(out, finding, policy, steps, meaning)

    return show


def document(finding: Finding, policy: Policy | None, steps: Sequence[StepView]) -> dict[str, Any]:
    """Return one line of `explain --json`. `at` is left out where the log has no wall clock."""
    told = {"at": to_json(finding.at.utc)} if told_wall(finding.at) else {}
    return {
        "line": finding.line,
        **told,
        "kind": finding.kind,
        "subject": finding.subject,
        "severity": finding.severity.value,
        "facts": to_json(finding.facts),
        "policy": None if policy is None else policy.name,
        "steps": [dataclasses.asdict(step) for step in steps],
    }


def _tell(out: Console, finding: Finding, policy: Policy | None, steps: Sequence[StepView], meaning: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def indented(text: Text, columns: int = 4) -> Padding:
        return Padding(text, (0, 0, 0, columns), expand=False)

    head = Text.assemble(
        (f"line {finding.line}  ", "dim"),
        (finding.severity.value, COLOURS[finding.severity.value]),
        f"  {finding.kind}  ",
        (plain(finding.subject), "bold"),
        "" if finding.raised else "  (cleared)",
    )
    out.print(head)
    if meaning:
        out.print(indented(Text(plain(meaning))))
    shown = "  ".join(f"{name}={plain(str(value))[:_MOST_TEXT]}" for name, value in finding.facts.items())
    out.print(indented(Text(shown, style="dim")))
    if policy is None:
        out.print(indented(Text("no policy takes it: nothing would be done")))
    else:
        quiet = format_duration(policy.quiet)
        out.print(indented(Text(f"policy {policy.name} ({policy.file}; stays open {quiet})")))
        for number, step in enumerate(steps, start=1):
            mark = ("would", "green") if step.would else ("would not", "yellow")
            line = Text.assemble(f"{number}. {step.do}: ", mark, f" ({plain(step.why)})")
            out.print(indented(line, 6))
        if not steps:
            out.print(indented(Text("no steps: it is recorded"), 6))
    out.print()
