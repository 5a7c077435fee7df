"""A child that reads the fake driver with the real binding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fakenvml import State

READER = Path(__file__).with_name("nvml_reader.py")


class Driver:
    """A host with four fake GPUs, as a child sees it."""

    def __init__(self, state: State, library: Path) -> None:
        self.state = state
        self.library = library

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start a Python that has these GPUs."""
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **self.state.env(self.library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, *arguments: str | Path) -> Any:
        """Return what such a Python prints last, as JSON."""
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return json.loads(out)

    def read(self, then: dict[str, Any] | None = None) -> Any:
        """Return all that the driver tells; with `then` the state changes after the handles were taken."""
        if then is None:
            return self.run(READER)
        process = self.start(READER, "wait")
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        self.state.change(then)
        out, _ = process.communicate(b"\n", timeout=30)
        return json.loads(out)
