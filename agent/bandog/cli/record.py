"""The stored record, for commands that work without the daemon."""

from __future__ import annotations

import click

from ..store.reader import Reader, StoreUnreadable
from .place import local_paths


def open_record() -> Reader:
    """Open the database of this host for reading; one that cannot be read is an error with exit code 1."""
    try:
        return Reader(local_paths().state / "bandog.db")
    except StoreUnreadable as error:
        raise click.ClickException(str(error)) from error
