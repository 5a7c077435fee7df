"""A bench for actions: a fake host whose clock moves only while an action waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from bandog import Request, Result, to_json
from bandog.testing import FakeSite, settle
from samples import request

T = TypeVar("T")
UNIT = "vllm-qwen.service"
CGROUP = f"/system.slice/{UNIT}"


@dataclass
class Bench(FakeSite):
    """A site of which `wait` lets the fake clock run; `on_second` is called after each second."""

    on_second: Callable[[], None] | None = None

    def wait(self, work: Coroutine[Any, Any, T], *, deadline: timedelta) -> T:
        return asyncio.run(self._drive(work))

    async def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while not task.done():
            await settle()
            if not task.done() and self.clock.sleeping:
                self.second()
        return await task

    def second(self) -> None:
        """Let one second pass."""
        self.clock.advance(timedelta(seconds=1))
        if self.on_second is not None:
            self.on_second()

    def request(self, action: str = "restart", **fields: Any) -> Request:
        """Return a request for the service `qwen`, found now."""
        return request("12.1", **{"at": self.clock.now(), "step": 1, "action": action, "facts": {"xid": 94}, **fields})

    def stuck(self, pid: int = 4711, comm: str = "VLLM::Worker_TP", wchan: str = "uvm_va_space_destroy") -> None:
        """Put a task in D state into the unit's cgroup."""
        self.host.task(pid, comm, "D", wchan=wchan, switches=7)
        self.host.cgroup(CGROUP, pid)

    def interrupted(self, request: Request, started: Any, **notes: Any) -> Result:
        """Return the result that the executor makes of a run in which the agent died."""

        return Result.done("interrupted", interrupted=True, started=to_json(started), notes=notes)
