"""A model server in small, for the lab: answers /health; can be asked to die or to get stuck.

GET  /health   200 as soon as it has "loaded" (second argument, seconds)
POST /die      ends the process with exit code 1
POST /wedge    a child named like a vLLM worker writes to the file named in the body and syncs it;
               on a frozen file system it stays in D state. Answers the child's pid.
"""

import ctypes
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PR_SET_NAME = 15  # prctl(2)
WORKER = b"VLLM::Worker"


def wedge(path: str) -> int:
    """Fork the worker and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(PR_SET_NAME, WORKER, 0, 0, 0)
    with Path(path).open("wb") as file:
        file.write(b"weights")
        file.flush()
        os.fsync(file.fileno())
    os._exit(0)


class Handler(BaseHTTPRequestHandler):
    """Answers what the lab asks."""

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        """Serve /health."""
        self._answer(200 if self.path == "/health" else 404, "{}")

    def do_POST(self) -> None:
        """Serve /die and /wedge."""
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        if self.path == "/die":
            os._exit(1)
        if self.path == "/wedge":
            self._answer(200, str(wedge(body)))
        else:
            self._answer(404, "")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
