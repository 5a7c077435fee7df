"""`bandog check`: all mistakes in the configuration at once, each with its place and the way out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

BAD_CONFIGURATION = 78  # EX_CONFIG of sysexits.h


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[FILE]...")
@click.option(
    "--config",
    "config_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Instead of /etc/bandog.",
)
@click.option(
    "--policies",
    "policies_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Instead of the shipped policies.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(files: tuple[Path, ...], config_dir: Path | None, policies_dir: Path | None, as_json: bool) -> None:
    """Report every mistake in the configuration; the daemon is not needed and not touched.

    Each FILE is a policy, a service, a main file, or a whole configuration directory; without one
    /etc/bandog and the shipped policies are checked. Warnings do not fail.
    """
    from ..config import load
    from ..config.problems import Problem
    from ..config.single import check_file
    from ..host.paths import Paths
    from ..pluginloader import load_catalogue

    paths, plugins = Paths(), load_catalogue()
    problems: list[Problem] = []
    counts = {"policies": 0, "services": 0}
    folders = [one for one in files if one.is_dir()] if files else [config_dir]
    for folder in folders:
        loaded = load(paths, plugins=plugins, config_dir=folder, policies_dir=policies_dir)
        problems += loaded.problems
        if loaded.config is not None:
            counts["policies"] += len(loaded.config.policies)
            counts["services"] += len(loaded.config.services)
    for file in (one for one in files if not one.is_dir()):
        problems += check_file(file, plugins=plugins, config_dir=config_dir, environ=os.environ)
    bad = any(not one.is_warning for one in problems)
    if as_json:
        click.echo(json.dumps({"ok": not bad, **counts, "problems": [one.to_dict() for one in problems]}))
    else:
        for problem in problems:
            click.echo(str(problem))
        if not problems:
            counted = f": {counts['policies']} policies, {counts['services']} services" if folders else ""
            click.echo(f"fine{counted}")
    raise SystemExit(BAD_CONFIGURATION if bad else 0)
