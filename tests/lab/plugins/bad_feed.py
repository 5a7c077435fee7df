"""A test plugin that fails at its first record."""

from collections.abc import Iterator
from typing import Any

import bandog


class BadFeed(bandog.LogDetector):
    """Raises at `lab bad feed`."""

    name = "bad-feed"
    needles = (b"lab bad feed",)
    emits = {"lab.bad-feed": {}}  # noqa: RUF012  (read only)

    def feed(self, record: bandog.Record) -> Iterator[bandog.Finding]:
        """Fail."""
        raise RuntimeError("bad in feed")


@bandog.hookimpl
def register_detectors(register: Any) -> None:
    """Add it."""
    register(BadFeed)
