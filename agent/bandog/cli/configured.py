"""The configuration of this host, for commands that cannot work without one that is right."""

from __future__ import annotations

from pathlib import Path

import click

from ..config import Config, PluginCatalogue, load
from ..host.paths import Paths
from .codes import BAD_CONFIGURATION


def configuration(
    paths: Paths, plugins: PluginCatalogue, *, policies_dir: Path | None = None, otherwise: str = ""
) -> Config:
    """Return the configuration; with a mistake in it, say each and the way out, and exit with 78.

    `otherwise` names another way out than to put the mistakes right.
    """
    loaded = load(paths, plugins=plugins, policies_dir=policies_dir)
    if loaded.config is None:
        for problem in loaded.errors:
            click.echo(str(problem), err=True)
        click.echo("put these right (bandog check)" + (f", or {otherwise}" if otherwise else ""), err=True)
        raise SystemExit(BAD_CONFIGURATION)
    return loaded.config
