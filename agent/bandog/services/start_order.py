"""`services start`: one service after the other, each gated on readiness and a settle time.

Two models that load at once race for GPU memory and page cache, and `active` does not mean ready: a
simple unit is active as soon as it is forked. So the next unit is started only after the one before
it has answered, and has stayed up for its `settle`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..domain.model import Instant
from ..host.site import Clock, Readiness
from ..host.systemd_types import Systemd, SystemdError, UnitState
from .registry import Registry, Service

_POLL = timedelta(seconds=2)


class Progress(enum.Enum):
    """How one service of a start stands."""

    PLANNED = "planned"
    ALREADY = "already"  # active and ready before we came
    STARTING = "starting"
    READY = "ready"  # has answered; `settle` runs
    STARTED = "started"
    FAILED = "failed"
    NOT_TRIED = "not-tried"  # an earlier one failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing to tell the person who watches a start."""

    service: str
    unit: str
    progress: Progress
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How a start ended: the last line of each service, in order."""

    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        """True when every service serves."""
        return all(line.progress in (Progress.ALREADY, Progress.STARTED) for line in self.lines)


Ask = Callable[[str], Awaitable[Readiness]]
"""Asks a service by name whether it is ready; a `Services.ready` moved to a worker."""
Report = Callable[[Line], None]


def plan(registry: Registry, names: Iterable[str] = ()) -> tuple[Service, ...]:
    """Return the services to start, in order (`start.order`, then name); all of them without `names`.

    Raises KeyError with the first name that is unknown.
    """
    wanted = set(names)
    for name in sorted(wanted):
        registry.get(name)
    return tuple(service for service in registry if not wanted or service.name in wanted)


def describe(services: Sequence[Service]) -> tuple[Line, ...]:
    """Return what a start would do, for `--dry-run`."""
    return tuple(
        Line(
            service=one.name,
            unit=one.unit,
            progress=Progress.PLANNED,
            why=f"wait up to {one.start.timeout.total_seconds():g} s until it is ready, "
            f"then {one.start.settle.total_seconds():g} s more",
        )
        for one in services
    )


async def start(services: Sequence[Service], *, systemd: Systemd, ready: Ask, clock: Clock, report: Report) -> Started:
    """Start `services` in the order given; the first that fails ends it. Runs on the loop."""
    lines: list[Line] = []
    for place, service in enumerate(services):
        last = await _Start(service, systemd, ready, clock, report).run()
        lines.append(last)
        if last.progress is Progress.FAILED:
            for other in services[place + 1 :]:
                why = f"{service.name} did not start"
                line = Line(service=other.name, unit=other.unit, progress=Progress.NOT_TRIED, why=why)
                report(line)
                lines.append(line)
            break
    return Started(lines=tuple(lines))


class _Start:
    """The start of one service."""

    def __init__(self, service: Service, systemd: Systemd, ready: Ask, clock: Clock, report: Report) -> None:
        self._service = service
        self._systemd = systemd
        self._ready = ready
        self._clock = clock
        self._report = report

    async def run(self) -> Line:
        """Return the last line about it."""
        service = self._service
        try:
            unit = await self._systemd.unit(service.unit)
            refused = _refusal(unit)
            if refused is not None:
                return self._say(Progress.FAILED, refused)
            if unit.active_state == "active" and (await self._ready(service.name)).ready:
                return self._say(Progress.ALREADY, "active and ready")
            if unit.active_state not in ("active", "activating"):
                self._say(Progress.STARTING)
                outcome = await self._systemd.start(service.unit, deadline=service.start.timeout)
                if not outcome.done and outcome.result != "timeout":
                    return self._say(
                        Progress.FAILED, f"systemd's start job ended {outcome.result} {outcome.why}".strip()
                    )
        except SystemdError as error:
            return self._say(Progress.FAILED, f"systemd did not answer: {error}")
        return await self._wait()

    async def _wait(self) -> Line:
        """Wait until it is ready, then until it has been so for `settle`."""
        began = self._clock.now()
        limits = self._service.start
        ready_since: Instant | None = None
        while True:
            answer = await self._look()
            if isinstance(answer, Line):
                return answer
            now = self._clock.now()
            if answer.ready is False:
                ready_since = None
            elif answer.ready and ready_since is None:
                ready_since = now
                self._say(Progress.READY, answer.why)
            if answer.ready and ready_since is not None and now.since(ready_since) >= limits.settle:
                return self._say(Progress.STARTED, answer.why)
            allowed = limits.timeout if ready_since is None else limits.timeout + limits.settle + _POLL
            if now.since(began) >= allowed:
                why = f"not ready within {limits.timeout.total_seconds():g} s: {answer.why}"
                return self._say(Progress.FAILED, why)
            await self._clock.sleep(_POLL)

    async def _look(self) -> Readiness | Line:
        """Ask once; the last line when the unit has gone down and nothing brings it up again."""
        try:
            unit = await self._systemd.unit(self._service.unit)
        except SystemdError as error:
            return Readiness(ready=None, why=f"systemd did not answer: {error}")
        if unit.active_state in ("failed", "inactive") and unit.job is None:
            return self._say(Progress.FAILED, f"unit is {unit.active_state}: {unit.result}")
        return await self._ready(self._service.name)

    def _say(self, progress: Progress, why: str = "") -> Line:
        line = Line(service=self._service.name, unit=self._service.unit, progress=progress, why=why)
        self._report(line)
        return line


def _refusal(unit: UnitState) -> str | None:
    if unit.load_state != "loaded":
        return f"unit is {unit.load_state}"
    if unit.need_daemon_reload:
        return "its unit files differ from what systemd has loaded"
    return None
