"""A test plugin that ends the whole agent at its record, as a fault in C code would."""

import os
from collections.abc import Iterator
from typing import Any

import bandog


class BadExit(bandog.LogDetector):
    """Ends the process at `lab bad exit`."""

    name = "bad-exit"
    needles = (b"lab bad exit",)
    emits = {"lab.bad-exit": {}}  # noqa: RUF012  (read only)

    def feed(self, record: bandog.Record) -> Iterator[bandog.Finding]:
        """Fail."""
        os._exit(1)


@bandog.hookimpl
def register_detectors(register: Any) -> None:
    """Add it."""
    register(BadExit)
