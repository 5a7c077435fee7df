"""The start of one service: what must be before it, the job, and the gate that it has to pass.

A start that makes progress is never given up early, and no unit is ever stopped here: a liveness check that restarts
what is still loading is a known cause of crash loops (triton-inference-server/server#7014).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from ..domain.gpus import Look
from ..domain.model import Instant
from ..host.site import Clock, Readiness
from ..host.systemd_types import Systemd, SystemdError, UnitState
from . import start_memory
from .overrides import Override
from .profiles import Refusal
from .registry import Service
from .start_order import Line, Progress, Report

POLL = timedelta(seconds=2)
JOB = timedelta(seconds=15)
"""How long the start job is waited for; a `Type=notify` unit has one until it is ready, and is watched meanwhile."""
FREE = timedelta(seconds=120)
"""The patience with memory that another holds, and with a card that is not there yet."""
EXTENSION = timedelta(seconds=600)
MOST = timedelta(seconds=7200)
SAMPLE = timedelta(seconds=30)
PASSING = timedelta(minutes=5)
"""From ready to a passed gate: the first completion of a large model takes a minute."""
RESTARTS = 3
"""A unit that systemd has restarted so often makes no progress, whatever it logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What grows while a model loads: its log's newest entry, bytes read from disk, bytes of GPU memory."""

    log: str = ""
    read: int | None = None
    memory: int | None = None

    def beyond(self, before: Signs) -> bool:
        """Return whether anything has moved since `before`."""
        return (
            bool(self.log and self.log != before.log)
            or (self.read or 0) - (before.read or 0) >= 1 << 20
            or (self.memory or 0) - (before.memory or 0) >= 64 << 20
        )


class Means(Protocol):
    """What a start asks of the host. Every call ends by itself."""

    @property
    def systemd(self) -> Systemd:
        """PID 1."""

    @property
    def clock(self) -> Clock:
        """The clocks."""

    async def ready(self, name: str) -> Readiness:
        """Ask a service whether it is ready."""

    async def serves(self, name: str) -> Readiness:
        """Ask whether a service is ready, and answers its canary where it has one."""

    async def look(self) -> Look | None:
        """Look at the GPUs; the newest look, None where there is no driver to ask."""

    async def holders(self, service: Service, look: Look | None) -> tuple[str, ...]:
        """Return who else holds memory of the service's GPUs, for people."""

    def missing(self, service: Service, look: Look | None) -> tuple[str, ...]:
        """Return the service's cards that are expected and not there."""

    async def prepare(self, service: Service, unit: UnitState, look: Look | None) -> Override | Refusal | str | None:
        """See that a card that is out is left out; what is in force, why it cannot start, or a remark."""

    def put(self, service: Service) -> tuple[str, ...]:
        """Return the GPUs that an override gives the service, () without one."""

    async def signs(self, service: Service, unit: UnitState, look: Look | None) -> Signs:
        """Return what has grown so far."""


class Start:
    """One start; `run` once."""

    def __init__(self, service: Service, means: Means, report: Report) -> None:
        self._service = service
        self._means = means
        self._report = report
        self._samples: list[tuple[timedelta, dict[str, int]]] = []
        self._restarts = 0

    async def run(self) -> Line:
        """Return the last line about it."""
        means, service = self._means, self._service
        try:
            unit = await means.systemd.unit(service.unit)
            refused = _refusal(unit)
            if refused is not None:
                return self._say(Progress.FAILED, refused)
            self._restarts = unit.n_restarts
            if unit.active_state == "active" and (await means.serves(service.name)).ready:
                return self._say(Progress.ALREADY, "active and serving")
            if unit.active_state not in ("active", "activating"):
                line = await self._begin(unit)
                if line is not None:
                    return line
        except SystemdError as error:
            return self._say(Progress.FAILED, f"systemd did not answer: {error}")
        return await self._gate()

    # --- before --------------------------------------------------------------------------------

    async def _begin(self, unit: UnitState) -> Line | None:
        """Ask for the job once the GPUs are free; the last line where there is nothing to wait for."""
        told, look = await self._room()
        prepared = await self._means.prepare(self._service, unit, look)
        if isinstance(prepared, Refusal):
            return self._say(Progress.FAILED, f"not started: {prepared.why}")
        if isinstance(prepared, Override):
            told = [*told, prepared.where]
        elif prepared:
            told = [*told, prepared]
        self._say(Progress.STARTING, "; ".join(told))
        outcome = await self._means.systemd.start(self._service.unit, deadline=JOB)
        if not outcome.done and outcome.result != "timeout":
            return self._say(Progress.FAILED, f"systemd's start job ended {outcome.result} {outcome.why}".strip())
        return None

    async def _room(self) -> tuple[list[str], Look | None]:
        """Wait for free memory and for cards that are still to come; what stands in the way at the end is said.

        Then it is started all the same: what holds the memory may be small or go away, and the unit's own server
        says so better than we do.
        """
        began = self._means.clock.now()
        said = False
        while True:
            look = await self._means.look()
            held = await self._means.holders(self._service, look)
            gone = self._means.missing(self._service, look)
            reasons = [f"memory is held by {', '.join(held)}"] if held else []
            reasons += [f"{', '.join(gone)} not there"] if gone else []
            if not reasons or self._means.clock.now().since(began) >= FREE:
                return reasons, look
            if not said:
                self._say(Progress.WAITING, "; ".join(reasons))
                said = True
            await self._means.clock.sleep(POLL)

    # --- the gate ------------------------------------------------------------------------------

    async def _gate(self) -> Line:
        """Wait until it is ready, then until it has passed the gate for `settle`."""
        clock = self._means.clock
        patience = _Patience(self._service, clock.now(), await self._signs())
        answered: Instant | None = None
        passed: Instant | None = None
        while True:
            answer = await self._ask(answered is not None)
            if isinstance(answer, Line):
                return answer
            now = clock.now()
            if answer.ready and answered is None:
                answered = now
                self._say(Progress.READY, answer.why)
                continue
            rests = answer.ready is not True or self._at_rest(await self._means.look())
            if answer.ready is False or not rests:
                passed = None
            elif answer.ready and passed is None:
                passed = now
            if answer.ready and passed is not None and now.since(passed) >= self._service.start.settle:
                return self._say(Progress.STARTED, answer.why)
            if answered is not None and now.since(answered) >= PASSING + self._service.start.settle:
                why = answer.why if rests else f"{answer.why}; its GPU memory does not come to rest"
                return self._say(Progress.FAILED, f"it was ready, and does not go on to serve: {why}")
            if answered is None:
                if patience.is_due(now):
                    patience.take(await self._signs(), now)
                if patience.is_over(now):
                    if not patience.extend(now):
                        return self._say(Progress.FAILED, f"not ready within {patience}: {answer.why}")
                    self._say(Progress.SLOW, f"it makes progress, and has until {patience}: {answer.why}")
            await clock.sleep(POLL)

    async def _ask(self, was_ready: bool) -> Readiness | Line:
        """Ask once, what was ready already for a completion too; the last line when the unit has gone down for good."""
        try:
            unit = await self._means.systemd.unit(self._service.unit)
        except SystemdError as error:
            return Readiness(ready=None, why=f"systemd did not answer: {error}")
        if unit.active_state in ("failed", "inactive") and unit.job is None:
            return self._say(Progress.FAILED, f"unit is {unit.active_state}: {unit.result}")
        ask = self._means.serves if was_ready else self._means.ready
        return await ask(self._service.name)

    def _at_rest(self, look: Look | None) -> bool:
        """Return whether the memory of its GPUs is stable; true where nobody can tell."""
        cards = start_memory.cards_of(self._service, look, self._means.put(self._service))
        memory = start_memory.used(cards)
        if look is None or not memory:
            return True
        if not self._samples or look.at.boottime > self._samples[-1][0]:
            self._samples = [*self._samples, (look.at.boottime, memory)][-64:]
        return start_memory.is_steady(self._samples)

    async def _signs(self) -> Signs:
        try:
            unit = await self._means.systemd.unit(self._service.unit)
        except SystemdError:
            return Signs()
        if unit.n_restarts - self._restarts >= RESTARTS:
            return Signs()
        return await self._means.signs(self._service, unit, await self._means.look())

    def _say(self, progress: Progress, why: str = "") -> Line:
        line = Line(service=self._service.name, unit=self._service.unit, progress=progress, why=why)
        self._report(line)
        return line


class _Patience:
    """How long a start may take to be ready: its time, and 600 s more each time that it has moved, up to 2 h."""

    def __init__(self, service: Service, began: Instant, signs: Signs) -> None:
        self._began = self._sampled = began
        self._moved: Instant | None = None
        self._signs = signs
        self._allowed = service.start.timeout
        self._most = max(MOST, service.start.timeout)

    def __str__(self) -> str:
        return f"{self._allowed.total_seconds():g} s"

    def is_due(self, now: Instant) -> bool:
        """Return whether it is time to look for signs again."""
        return now.since(self._sampled) >= SAMPLE

    def take(self, signs: Signs, now: Instant) -> None:
        """Take what has grown so far."""
        self._sampled = now
        if signs.beyond(self._signs):
            self._moved = now
        self._signs = signs

    def is_over(self, now: Instant) -> bool:
        """Return whether its time is used up."""
        return now.since(self._began) >= self._allowed

    def extend(self, now: Instant) -> bool:
        """Give it more time if it has moved of late; false where it gets none."""
        more = min(self._allowed + EXTENSION, self._most)
        if more <= self._allowed or self._moved is None or now.since(self._moved) >= EXTENSION:
            return False
        self._allowed = more
        return True


def _refusal(unit: UnitState) -> str | None:
    if unit.load_state != "loaded":
        return f"unit is {unit.load_state}"
    if unit.need_daemon_reload:
        return "its unit files differ from what systemd has loaded"
    return None
