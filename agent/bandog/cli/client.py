"""The command line's side of the control socket."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from typing import Any

import click

from ..host.paths import Paths
from .output import plain


class NotRunning(Exception):
    """No daemon answers on the control socket; the text says why."""


def call(paths: Paths, do: str, deadline: timedelta = timedelta(seconds=10), **arguments: Any) -> Any:
    """Ask the daemon and return its answer.

    Raises NotRunning if none listens and click.ClickException if it refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(deadline.total_seconds())
            peer.connect(str(paths.run / "control"))
            peer.sendall(json.dumps({"do": do, "with": arguments}).encode() + b"\n")
            with peer.makefile("rb") as stream:
                line = stream.readline()
    except PermissionError:
        raise NotRunning("only root may talk to the daemon; try sudo") from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotRunning("bandog is not running (systemctl status bandog)") from None
    except OSError as error:
        raise NotRunning(f"bandog does not answer: {error}") from error
    if not line:
        raise NotRunning("bandog closed the connection without an answer")
    reply = json.loads(line)
    if not reply.get("ok"):
        raise click.ClickException(plain(reply.get("error", "refused")))
    return reply.get("answer")


def demand(paths: Paths, do: str, deadline: timedelta = timedelta(seconds=10), **arguments: Any) -> Any:
    """Like `call`, for commands that need the daemon: NotRunning becomes an error with exit code 1."""
    try:
        return call(paths, do, deadline, **arguments)
    except NotRunning as error:
        raise click.ClickException(str(error)) from error
