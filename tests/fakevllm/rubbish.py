"""Answers to a completion that no healthy server gives, for whoever has to tell them apart."""

from __future__ import annotations

import contextlib
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import Handler

PIECE = b" " * (1 << 16)
PIECES = 1 << 10  # 64 MiB
DRIPS = 600
BODIES = {
    "text": b"all is well",
    "html": b"<html><body>Welcome to nginx!</body></html>",
    "empty": b'{"object": "text_completion", "choices": [], "usage": {"completion_tokens": 0}}',
    "blank": b'{"object": "text_completion", "choices": [{"index": 0, "text": ""}], "usage": {"completion_tokens": 0}}',
    "none": b"",
}


def answer(handler: Handler, kind: str) -> None:
    """Send the answer called `kind`."""
    handler.close_connection = True
    if kind in BODIES:
        handler.send(BODIES[kind], kind="text/html" if kind == "html" else "application/json")
    elif kind == "error":
        handler.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "EngineCore encountered an issue.")
    else:
        with contextlib.suppress(OSError):
            _oddly(handler, kind)


def _oddly(handler: Handler, kind: str) -> None:
    """Send what is wrong below the level of JSON."""
    if kind == "redirect":
        handler.send_response(HTTPStatus.FOUND)
        handler.send_header("Location", handler.path)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(HTTPStatus.OK)
    handler.send_header("Content-Length", str(len(PIECE) * PIECES))
    handler.end_headers()
    if kind == "short":
        handler.wfile.write(BODIES["blank"][:40])
    elif kind == "huge":
        for _ in range(PIECES):
            handler.wfile.write(PIECE)
    elif kind == "drip":
        for _ in range(DRIPS):
            handler.wfile.write(b" ")
            time.sleep(1)
