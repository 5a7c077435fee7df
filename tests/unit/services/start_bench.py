"""A host on which services are started: scripted systemd and services, looks and signs of the test, a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from bandog.domain.gpus import GpuLook, Look
from bandog.host.site import Readiness
from bandog.host.systemd_types import UnitState
from bandog.services import start_order
from bandog.services.overrides import Override
from bandog.services.profiles import Refusal
from bandog.services.registry import Service, Start
from bandog.services.start_one import Signs
from bandog.services.start_one import Start as OneStart
from bandog.services.start_order import Line, Progress, Started
from bandog.testing import FakeClock, FakeServices, FakeSystemd

T = TypeVar("T")


def service(name: str, order: int = 1, *, gpus: Any = (), canary: bool = False, **start_: Any) -> Service:
    """A service that settles for 20 s and has 5 minutes to be ready."""
    wanted: dict[str, Any] = {"settle": timedelta(seconds=20), "timeout": timedelta(minutes=5), **start_}
    more = {"canary": {"openai": "http://x"}} if canary else {}
    return Service(name=name, unit=f"{name}.service", gpus=gpus, start=Start(order=order, **wanted), **more)


class Bench:
    """Implements `start_one.Means`; what a test does not script stands in nobody's way."""

    def __init__(self, *services: Service) -> None:
        self.clock = FakeClock()
        self.services = FakeServices(*services)
        self.systemd = FakeSystemd(self.clock)
        self.lines: list[Line] = []
        self.jobs_at: dict[str, timedelta] = {}
        self.systemd.on_job = self._job
        self.cards: Callable[[timedelta], Sequence[GpuLook]] | None = None
        self.held: Callable[[timedelta], tuple[str, ...]] = lambda _: ()
        self.gone: Callable[[timedelta], tuple[str, ...]] = lambda _: ()
        self.prepared: Override | Refusal | str | None = None
        self.grown: Callable[[timedelta], Signs] = lambda _: Signs()
        self.began = self.clock.now().boottime
        for one in services:
            self.systemd.add(one.unit, active_state="inactive", sub_state="dead", main_pid=None)

    def _job(self, job: Any) -> None:
        self.jobs_at[job.unit] = self.clock.now().boottime

    @property
    def since(self) -> timedelta:
        """How long the start runs."""
        return self.clock.now().boottime - self.began

    async def ready(self, name: str) -> Readiness:
        return self.services.ready(name)

    async def serves(self, name: str) -> Readiness:
        return self.services.serves(name)

    async def look(self) -> Look | None:
        return Look(at=self.clock.now(), gpus=tuple(self.cards(self.since))) if self.cards is not None else None

    async def holders(self, service: Service, look: Look | None) -> tuple[str, ...]:
        return self.held(self.since)

    def missing(self, service: Service, look: Look | None) -> tuple[str, ...]:
        return self.gone(self.since)

    async def prepare(self, service: Service, unit: UnitState, look: Look | None) -> Override | Refusal | str | None:
        return self.prepared

    def put(self, service: Service) -> tuple[str, ...]:
        return ()

    async def signs(self, service: Service, unit: UnitState, look: Look | None) -> Signs:
        return self.grown(self.since)

    def start(self, names: Sequence[str] = ()) -> Started:
        """Start services by the fake clock."""
        chosen = start_order.plan(self.services.registry, names)
        return self.played(start_order.start(chosen, lambda one: OneStart(one, self, self.lines.append).run()))

    def played(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, a second of the fake clock at a time."""

        async def go() -> T:
            running = asyncio.ensure_future(work)
            while not running.done():
                await self.clock.run(timedelta(seconds=1))
            return await running

        return asyncio.run(go())

    def said(self, progress: Progress) -> list[str]:
        """Return what was said of a kind."""
        return [line.why for line in self.lines if line.progress is progress]


def ends(started: Started) -> dict[str, Progress]:
    """Return how each service ended."""
    return {line.service: line.progress for line in started.lines}
