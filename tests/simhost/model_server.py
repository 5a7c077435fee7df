"""A model server in small: loads for a moment, then answers /health and /v1/models."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers what a probe asks."""

    def do_GET(self) -> None:
        """Serve /health and /v1/models; 404 else."""
        body = {"/health": "{}", "/v1/models": json.dumps({"data": [{"id": "qwen"}]})}.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    port, load = int(sys.argv[1]), float(sys.argv[2])
    time.sleep(load)
    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
