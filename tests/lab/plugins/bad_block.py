"""A test plugin that blocks the loop for a minute at its first record."""

import time
from collections.abc import Iterable
from typing import Any

import bandog


class BadBlock(bandog.LogDetector):
    """Sleeps at `lab bad block`."""

    name = "bad-block"
    needles = (b"lab bad block",)
    emits = {"lab.bad-block": {}}  # noqa: RUF012  (read only)

    def feed(self, record: bandog.Record) -> Iterable[bandog.Finding]:
        """Block."""
        time.sleep(60)
        return ()


@bandog.hookimpl
def register_detectors(register: Any) -> None:
    """Add it."""
    register(BadBlock)
