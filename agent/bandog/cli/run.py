"""`bandog run`: the daemon in the foreground."""

from __future__ import annotations

import os
import sys
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
    _open_standard_streams()
    from ..daemon import Settings, main
    from ..host.boot import boot_id
    from ..host.paths import Paths

    if os.geteuid() != 0:
        click.echo(
            "not run as root: the kernel's log, units and processes of others are out of reach; use sudo", err=True
        )
    try:
        boot_id(Paths(root=root))
    except (OSError, ValueError) as error:
        # No record could be told from one of an earlier boot.
        raise click.ClickException(f"this host has no boot id, so nothing can be watched: {error}") from error
    here = local_paths()
    settings = Settings(
        root=root,
        etc=config_dir or here.etc_dir,
        state=state_dir or here.state_dir,
        run=run_dir or here.run_dir,
        observe=observe,
    )
    raise SystemExit(main(settings))


def _open_standard_streams() -> None:
    """Let no file of ours take the number of a stream that was closed: what is written there would go into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free number is given out, and that is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (as long as the process)
