"""The control socket: how the command line talks to the living daemon.

A Unix socket in `/run/bandog`, for root only: one JSON object a line in, one out. There is no
network listener. Arbitrary bytes get an error line and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import logging
import math
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

log = logging.getLogger(__name__)

Handler = Callable[..., Any]
LINE_LIMIT = 64 * 1024
IDLE_SECONDS = 30.0
MAX_CLIENTS = 16


class OperatorError(Exception):
    """What the person asked for cannot be done; the text says why and what would help."""


class Control:
    """Serves `operations` (name → function of keyword arguments, sync or async) on a socket."""

    def __init__(self, path: Path, operations: Mapping[str, Handler]) -> None:
        self._path = path
        self._operations = dict(operations)
        self._server: asyncio.AbstractServer | None = None
        self._clients = 0

    async def start(self) -> None:
        """Bind the socket, replacing one that a dead daemon left; raises OSError if that cannot be."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if _is_served(self._path):
            raise OSError(errno.EADDRINUSE, "another bandog serves it", str(self._path))
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        mask = os.umask(0o177)
        try:
            listener.bind(str(self._path))
        finally:
            os.umask(mask)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_LIMIT)

    async def stop(self) -> None:
        """Close the socket and take its name away."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients > MAX_CLIENTS or not _may(writer):
                return
            while line := await asyncio.wait_for(reader.readline(), IDLE_SECONDS):
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), IDLE_SECONDS)
        except (OSError, ValueError, TimeoutError, asyncio.LimitOverrunError) as error:
            log.debug("control client dropped why=%s", error)
        finally:
            self._clients -= 1
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            name, arguments = request["do"], request.get("with", {})
            operation = self._operations[name]
            _check(operation, inspect.signature(operation).bind(**arguments).arguments)
        except KeyError as error:
            return {"ok": False, "error": f"unknown operation {error}"}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            return {"ok": False, "error": f"not a request: {error}"}
        try:
            answer = operation(**arguments)
            if isinstance(answer, Awaitable):
                answer = await answer
        except OperatorError as error:
            return {"ok": False, "error": str(error)}
        # A fault in one operation must not end the daemon; it is logged with its place.
        except (ValueError, TypeError, KeyError, OSError, OverflowError, RuntimeError, TimeoutError) as error:
            log.exception("operation failed operation=%s", name)
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}
        return {"ok": True, "answer": answer}


def _is_served(path: Path) -> bool:
    """True if a living daemon listens there; connecting to a local socket takes no time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
        return True


def _check(operation: Handler, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument of another type than the operation says: it may go to the record,
    and a record that cannot be read back is set aside whole."""
    hints = get_type_hints(operation)
    for name, value in arguments.items():
        if name in hints and not _fits(value, hints[name]):
            raise TypeError(f"{name} cannot be {type(value).__name__}")


def _fits(value: Any, kind: Any) -> bool:
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in of)
    if origin is Sequence:
        return isinstance(value, list) and all(_fits(item, of[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(item, of[1]) for item in value.values())
    if origin is not None:  # a tuple, which JSON does not have
        return False
    if kind in (int, float):
        finite = not isinstance(value, float) or math.isfinite(value)
        return finite and isinstance(value, (int, kind)) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)


def _may(writer: asyncio.StreamWriter) -> bool:
    """True if the peer is root or the daemon's own user (SO_PEERCRED, unix(7))."""
    peer = writer.get_extra_info("socket")
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", raw)
    return uid in (0, os.geteuid())
