"""`bandog check`: all mistakes in the configuration at once, each with its place and the way out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from .codes import BAD_CONFIGURATION
from .place import local_paths


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
    """Report every mistake in the configuration.

    Each FILE is a policy, a service, a main file, a directory of such files, or a whole configuration
    directory like /etc/bandog, which is what is checked without FILE, with the shipped policies.
    Warnings do not fail. The daemon is not needed and not touched.
    """
    from ..config import load
    from ..config.problems import Problem
    from ..config.single import check_file
    from ..pluginloader import load_catalogue

    paths = local_paths()
    plugins = load_catalogue(paths)
    problems: list[Problem] = []
    counts = {"policies": 0, "services": 0}
    folders: list[Path | None] = [one for one in files if _is_configuration(one)] if files else [config_dir]
    for folder in folders:
        loaded = load(paths, plugins=plugins, config_dir=folder, policies_dir=policies_dir)
        problems += loaded.problems
        if loaded.config is not None:
            counts["policies"] += len(loaded.config.policies)
            counts["services"] += len(loaded.config.services)
    for file in _single_files(files):
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


def _is_configuration(path: Path) -> bool:
    """Return whether a directory is laid out like /etc/bandog, or holds nothing else to check."""
    known = ("bandog.yaml", "conf.d", "policies.d", "services.d")
    return path.is_dir() and (any((path / name).exists() for name in known) or not any(path.glob("*.yaml")))


def _single_files(files: Iterable[Path]) -> Iterator[Path]:
    for one in files:
        if not one.is_dir():
            yield one
        elif not _is_configuration(one):
            yield from sorted(one.glob("*.yaml"))
