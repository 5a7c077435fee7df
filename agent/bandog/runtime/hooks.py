"""Calls the plugins' `incident_changed` hook beside everything else, one call after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..domain.changes import IncidentChanged
from .workers import Workers

log = logging.getLogger(__name__)

HOOK_DEADLINE = timedelta(seconds=5)


class ChangeHooks:
    """`hook` is pluggy's caller of `incident_changed`. What it raises has no effect on the incident."""

    def __init__(self, hook: Any, workers: Workers) -> None:
        self._hook = hook
        self._workers = workers
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self, change: IncidentChanged) -> None:
        """Tell the plugins; returns at once."""
        if self._hook.get_hookimpls():
            task = asyncio.get_running_loop().create_task(
                self._call(lambda: self._hook(incident=change.incident, change=change.what))
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, call: Callable[[], Any]) -> None:
        try:
            async with self._turn:  # in order, and in one thread
                await self._workers.run(call, deadline=HOOK_DEADLINE, name="incident_changed")
        # A plugin at work, the second door: its failure has no effect on the incident.
        except Exception as error:
            log.warning("hook failed hook=incident_changed why=%s", error)

    async def stop(self) -> None:
        """Give up what is not told yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
