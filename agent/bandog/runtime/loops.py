"""The daemon's tasks that shall go on for ever: one that ends by a fault of our own must not do so unsaid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Loops:
    """On the loop only. `broken(name, why)` is called for a task that has raised."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` until `stop`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._has_ended)
        self._tasks.append(task)

    async def stop(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a part has ended by a fault of bandog part=%s", task.get_name(), exc_info=error)
            self._broken(task.get_name(), f"{type(error).__name__}; until a restart of the agent it does nothing")
