"""PID 1 in small: units that are real processes, behind the same protocol as the real systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bandog import JobOutcome, UnitState


def _monotonic() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class Unit:
    """One unit: its program, and the process that runs it now, with all that it forks in a session of its own.

    `environment` is that of `Environment=`; `environment_file` overrides it, and need not exist. What the program
    prints is added to `log`.
    """

    argv: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    invocation: str = ""
    active_enter: float = 0.0
    state_change: float = 0.0
    stopped: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    environment_file: Path | None = None
    log: Path = Path("/dev/null")


class SimulatedSystemd:
    """Starts and stops real processes; keeps a list of every job that it was asked for.

    `seconds` is the clock of its stamps, CLOCK_MONOTONIC as a rule.
    """

    def __init__(self, units: Mapping[str, Sequence[str]], seconds: Callable[[], float] = _monotonic) -> None:
        self.units = {name: Unit(argv) for name, argv in units.items()}
        self.jobs: list[tuple[str, str]] = []
        self.seconds = seconds

    def boot(self, name: str) -> None:
        """Start a unit without a job, as at boot."""
        unit = self.units[name]
        _kill_rest(unit)
        given = environment_of(unit)
        with unit.log.open("ab") as log:
            unit.process = subprocess.Popen(
                expanded(unit.argv, given),
                env={**os.environ, **given},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        unit.invocation = uuid.uuid4().hex
        unit.active_enter = unit.state_change = self.seconds()
        unit.stopped = False

    def crash(self, name: str) -> None:
        """Let the unit's process die, as a fault would."""
        process = self.units[name].process
        assert process is not None
        process.kill()
        process.wait(timeout=5)
        _kill_rest(self.units[name])

    def _end(self, unit: Unit) -> None:
        if unit.process is not None and unit.process.poll() is None:
            os.killpg(unit.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                unit.process.wait(timeout=5)
        _kill_rest(unit)
        unit.stopped = True
        unit.state_change = self.seconds()

    def shutdown(self) -> None:
        """End every process."""
        for unit in self.units.values():
            self._end(unit)

    async def unit(self, name: str) -> UnitState:
        """Return the unit's state, read from its process."""
        unit = self.units.get(name)
        if unit is None:
            return UnitState(name=name, load_state="not-found")
        code = unit.process.poll() if unit.process is not None else None
        running = unit.process is not None and code is None
        failed = not running and not unit.stopped and unit.process is not None
        return UnitState(
            name=name,
            active_state="active" if running else "failed" if failed else "inactive",
            sub_state="running" if running else "failed" if failed else "dead",
            result="signal" if failed and (code or 0) < 0 else "exit-code" if failed else "success",
            main_pid=unit.process.pid if running and unit.process else None,
            invocation_id=unit.invocation,
            active_enter=timedelta(seconds=unit.active_enter),
            state_change=timedelta(seconds=unit.state_change),
            fragment_path=f"/etc/systemd/system/{name}",
            environment_files=(str(unit.environment_file),) if unit.environment_file is not None else (),
        )

    async def _job(self, verb: str, name: str) -> JobOutcome:
        self.jobs.append((verb, name))
        if name not in self.units:
            return JobOutcome(result="failed", why=f"{name} not found")
        if verb in ("restart", "stop"):
            await asyncio.to_thread(self._end, self.units[name])
        process = self.units[name].process
        if verb in ("restart", "start") and (process is None or process.poll() is not None):
            self.boot(name)  # (else another job has just started it)
        return JobOutcome(result="done", job=len(self.jobs))

    async def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """End the process and start it again."""
        return await self._job("restart", name)

    async def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Start the process."""
        return await self._job("start", name)

    async def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """End the process."""
        return await self._job("stop", name)

    async def reset_failed(self, name: str) -> None:
        """Nothing to clear here."""

    async def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit whose process this is, or whose process has forked it."""
        try:
            session = os.getsid(pid)
        except ProcessLookupError:
            session = pid
        for name, unit in self.units.items():
            if unit.process is not None and unit.process.pid == session:
                return name
        return None


def _kill_rest(unit: Unit) -> None:
    """Kill what is left of the unit, as KillMode=control-group does."""
    if unit.process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(unit.process.pid, signal.SIGKILL)
        unit.process.wait(timeout=5)


def environment_of(unit: Unit) -> dict[str, str]:
    """Return what the unit's program is given: its environment, overridden by its file (systemd.exec(5))."""
    given = dict(unit.environment)
    with contextlib.suppress(OSError):
        lines = unit.environment_file.read_text().splitlines() if unit.environment_file is not None else []
        for line in lines:
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith(("#", ";")):
                given[name] = "".join(shlex.split(value))
    return given


def expanded(argv: Sequence[str], given: Mapping[str, str]) -> list[str]:
    """Return a command line with its variables put in: `${NAME}` within a word, `$NAME` as words of its own."""
    words: list[str] = []
    for word in argv:
        alone = re.fullmatch(r"\$(\w+)", word)
        if alone:
            words += given.get(alone[1], "").split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: given.get(found[1], ""), word))
    return words
