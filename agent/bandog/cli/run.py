"""`bandog run`: the daemon in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from .place import local_paths


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), hidden=True)
@click.option("--config", "config_dir", type=click.Path(path_type=Path), help="Instead of /etc/bandog.")
@click.option("--state", "state_dir", type=click.Path(path_type=Path), help="Instead of /var/lib/bandog.")
@click.option("--runtime", "run_dir", type=click.Path(path_type=Path), help="Instead of /run/bandog.")
@click.option("--observe", is_flag=True, help="Never act, whatever the configuration says.")
def run(root: Path, config_dir: Path | None, state_dir: Path | None, run_dir: Path | None, observe: bool) -> None:
    """Watch this host until told to stop. As a service: systemctl start bandog."""
    from ..daemon import Settings, main

    here = local_paths()
    settings = Settings(
        root=root,
        etc=config_dir or here.etc_dir,
        state=state_dir or here.state_dir,
        run=run_dir or here.run_dir,
        observe=observe,
    )
    raise SystemExit(main(settings))
