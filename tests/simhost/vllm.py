"""A fakevllm of a test's own: started in a session of its own, so that nothing of it outlives the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .sink import free_port

PROGRAM = Path(__file__).parents[1] / "fakevllm"


def command(port: int, *options: str) -> list[str]:
    """Return the command line of a server on `port`."""
    return [sys.executable, str(PROGRAM), "serve", "qwen", "--port", str(port), *options]


class Client:
    """Asks a server on a port of loopback."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def log(self) -> str:
        """What it printed so far, where that is known."""
        return ""

    def until(self, condition: Callable[[], object], within: float = 20.0) -> None:
        """Wait for a condition; AssertionError with the log if it does not come."""
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"did not happen within {within:g} s; the log:\n{self.log}")
            time.sleep(0.01)

    def get(self, path: str, body: Any = None, *, key: str = "", within: float = 20.0) -> tuple[int, bytes]:
        """Return status and body of an answer; status 0 for none."""
        asked = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        if key:
            asked.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(asked, timeout=within) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def status(self, path: str) -> int:
        """Return the status of a page, 0 while nobody answers."""
        return self.get(path)[0]

    def complete(self, tokens: int = 8, within: float = 20.0) -> int:
        """Ask for a completion; return its status, 0 where none came in time."""
        return self.get("/v1/completions", {"model": "qwen", "prompt": "1 2 3", "max_tokens": tokens}, within=within)[0]

    def mode(self, mode: str = "", argument: str = "") -> dict[str, Any]:
        """Change the mode, or only ask; return it with pids and GPUs."""
        body = {"mode": mode, "argument": argument} if mode else None
        status, answer = self.get("/lab/mode", body)
        assert status == 200, answer
        return dict(json.loads(answer))

    def metrics(self) -> dict[str, float]:
        """Return the page of metrics by series, labels left out but for those of other dimensions."""
        lines = [line for line in self.get("/metrics")[1].decode().splitlines() if not line.startswith("#")]
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {series.partition("{")[0]: float(value) for series, value in pairs if "_bucket" not in series}


class FakeVllm(Client):
    """A server of the test's own; it follows the file `control`."""

    def __init__(
        self, root: Path, *options: str, env: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        super().__init__(port or free_port())
        self._log = root / f"vllm-{self.port}.log"
        environ = {"PATH": os.environ["PATH"], "FAKEVLLM_LOAD": "0", "FAKEVLLM_PROFILE": "0"}
        self.control = root / f"vllm-{self.port}.mode"
        environ["FAKEVLLM_CONTROL"] = str(self.control)
        environ |= {"FAKEVLLM_FIFO": str(root / f"vllm-{self.port}.fifo"), **(env or {})}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command(self.port, *options), env=environ, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> str:
        """Everything that its processes printed."""
        return self._log.read_text("utf-8", "replace")

    def ready(self) -> FakeVllm:
        """Wait until it answers /health."""
        self.until(lambda: self.status("/health") == 200 or self.process.poll() is not None)
        assert self.process.poll() is None, self.log
        return self

    def ended(self, within: float = 20.0) -> int:
        """Wait for the end of the API server and return its exit code."""
        try:
            return self.process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running; the log:\n{self.log}") from None

    def close(self) -> None:
        """Kill every process of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)
