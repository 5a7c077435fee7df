"""A PID 1 that a test scripts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ..host.systemd_types import JobOutcome, SystemdError, UnitState
from .clock import FakeClock

Scripted = JobOutcome | SystemdError | str
"""How a scripted job ends: an outcome, an error to raise, or systemd's result word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job asked of a `FakeSystemd`."""

    verb: str
    unit: str


class FakeSystemd:
    """PID 1 with scripted units; implements the `Systemd` protocol and keeps a log of `jobs`.

    A job succeeds at once unless `script` says otherwise: `restart` and `start` give the unit a new
    main pid and invocation, `stop` takes them away.
    """

    def __init__(self, clock: FakeClock, *units: UnitState) -> None:
        self._clock = clock
        self._units = {unit.name: unit for unit in units}
        self._scripts: dict[tuple[str, str], list[Scripted]] = {}
        self._pids: dict[int, str] = {}
        self._next_pid = itertools.count(5000)
        self._down: SystemdError | None = None
        self._hold: asyncio.Event | None = None
        self.jobs: list[Job] = []
        self.resets: list[str] = []
        self.on_job: Callable[[Job], Awaitable[None] | None] | None = None

    def add(self, name: str, **fields: Any) -> UnitState:
        """Add a running unit (main pid, invocation, active since now); `fields` override."""
        pid = next(self._next_pid)
        running: dict[str, Any] = {
            "active_state": "active",
            "sub_state": "running",
            "main_pid": pid,
            "invocation_id": f"{pid:032x}",
            "active_enter": self._clock.now().boottime,
            "state_change": self._clock.now().boottime,
            "control_group": f"/system.slice/{name}",
            "fragment_path": f"/etc/systemd/system/{name}",
            "unit_file_state": "enabled",
        }
        self._units[name] = UnitState(name=name, **(running | fields))
        return self._units[name]

    def change(self, name: str, **fields: Any) -> UnitState:
        """Change fields of a unit, as if systemd or a person had."""
        self._units[name] = replace(self._units[name], **fields)
        return self._units[name]

    def remove(self, name: str) -> None:
        """Forget a unit: its load state becomes `not-found`."""
        self._units.pop(name, None)

    def script(self, verb: str, name: str, *ends: Scripted) -> None:
        """Let the next jobs `verb` on unit `name` end so, in order; then jobs succeed again."""
        self._scripts.setdefault((verb, name), []).extend(ends)

    def hold(self) -> asyncio.Event:
        """Let jobs wait until the event returned is set, or their deadline by the fake clock."""
        self._hold = asyncio.Event()
        return self._hold

    def disconnect(self, kind: str = "disconnected") -> None:
        """Let every call raise SystemdError(kind) until `reconnect`."""
        self._down = SystemdError(kind, f"the test says {kind}")

    def reconnect(self) -> None:
        """End `disconnect`."""
        self._down = None

    def place(self, pid: int, unit: str) -> None:
        """Say that `pid` belongs to `unit`."""
        self._pids[pid] = unit

    async def unit(self, name: str) -> UnitState:
        """Return the unit's state, `not-found` where none was added."""
        self._check()
        return self._units.get(name) or UnitState(name=name, load_state="not-found")

    async def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Log the job and end it as scripted."""
        return await self._job("restart", name, deadline)

    async def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Log the job and end it as scripted."""
        return await self._job("start", name, deadline)

    async def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Log the job and end it as scripted."""
        return await self._job("stop", name, deadline)

    async def reset_failed(self, name: str) -> None:
        """Log it; a failed unit becomes inactive. SystemdError `refused` for an unknown unit."""
        self._check()
        if name not in self._units:
            raise SystemdError("refused", f"Unit {name} not loaded.")
        self.resets.append(name)
        if self._units[name].active_state == "failed":
            self.change(name, active_state="inactive", sub_state="dead", result="success")

    async def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit that `place` or a main pid says."""
        self._check()
        if pid in self._pids:
            return self._pids[pid]
        return next((unit.name for unit in self._units.values() if unit.main_pid == pid), None)

    def _check(self) -> None:
        if self._down is not None:
            raise SystemdError(self._down.kind, str(self._down))

    async def _job(self, verb: str, name: str, deadline: timedelta) -> JobOutcome:
        self._check()
        job = Job(verb=verb, unit=name)
        self.jobs.append(job)
        number = len(self.jobs)
        if self.on_job is not None:
            waiting = self.on_job(job)
            if waiting is not None:
                await waiting
        if self._hold is not None and not await self._held(self._hold, deadline):
            return JobOutcome(result="timeout", job=number, why=f"no end within {deadline}")
        queue = self._scripts.get((verb, name))
        end: Scripted = queue.pop(0) if queue else "done"
        if isinstance(end, SystemdError):
            raise end
        outcome = replace(end, job=number) if isinstance(end, JobOutcome) else JobOutcome(result=end, job=number)
        if name not in self._units:
            return JobOutcome(result="refused", why=f"Unit {name} not found.")
        self._apply(verb, name, outcome)
        return outcome

    async def _held(self, held: asyncio.Event, deadline: timedelta) -> bool:
        """Return whether `held` was set before the fake clock passed the deadline."""
        released = asyncio.ensure_future(held.wait())
        late = asyncio.ensure_future(self._clock.sleep(deadline))
        try:
            await asyncio.wait({released, late}, return_when=asyncio.FIRST_COMPLETED)
            return released.done()
        finally:
            released.cancel()
            late.cancel()

    def _apply(self, verb: str, name: str, outcome: JobOutcome) -> None:
        now = self._clock.now().boottime
        if outcome.result == "failed":
            self.change(name, active_state="failed", sub_state="failed", main_pid=None, state_change=now)
        if not outcome.done:
            return
        if verb == "stop":
            self.change(
                name,
                active_state="inactive",
                sub_state="dead",
                main_pid=None,
                inactive_enter=now,
                state_change=now,
            )
        else:
            pid = next(self._next_pid)
            self.change(
                name,
                active_state="active",
                sub_state="running",
                result="success",
                main_pid=pid,
                invocation_id=f"{pid:032x}",
                active_enter=now,
                state_change=now,
            )
