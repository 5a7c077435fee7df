"""A webhook on loopback that keeps what it is sent."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORTS = range(20000, 32000)
"""Below those that the kernel gives to whoever asks for any (ip-sysctl, ip_local_port_range: from 32768): a server that
is restarted finds its port still free."""


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class WebhookSink:
    """Receives JSON by POST; `messages` holds the bodies in order."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                sink.messages.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The Apprise URL of this sink."""
        return f"json://127.0.0.1:{self.port}/"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
