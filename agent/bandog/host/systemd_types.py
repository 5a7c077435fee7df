"""What systemd tells of a unit and a job, as values; the client itself is in `systemd`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """A unit as PID 1 sees it (org.freedesktop.systemd1, Unit and Service interfaces).

    Times are CLOCK_MONOTONIC since boot; zero when it never happened. `main_pid` is None while
    nothing runs (systemd says 0, which as an argument of kill(2) would mean our own group).
    `environment_files` are the paths of its `EnvironmentFile=`, as written, in order.
    """

    name: str
    load_state: str = "loaded"  # loaded | not-found | masked | error …
    active_state: str = "inactive"  # active | activating | deactivating | failed | inactive | reloading
    sub_state: str = "dead"
    result: str = "success"  # success | exit-code | signal | start-limit-hit | timeout | oom-kill …
    type_: str = "simple"
    main_pid: int | None = None
    invocation_id: str = ""
    n_restarts: int = 0
    restart: str = "no"
    kill_mode: str = "control-group"
    control_group: str = ""
    active_enter: timedelta = field(default_factory=timedelta)
    inactive_enter: timedelta = field(default_factory=timedelta)
    state_change: timedelta = field(default_factory=timedelta)
    fragment_path: str = ""
    drop_in_paths: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    unit_file_state: str = ""
    need_daemon_reload: bool = False
    job: int | None = None
    timeout_stop: timedelta = field(default_factory=lambda: timedelta(seconds=90))
    timeout_start: timedelta = field(default_factory=lambda: timedelta(seconds=90))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended: systemd's result word, or `timeout`/`refused`/`disconnected` of our own.

    systemd's words: done, canceled, timeout, failed, dependency, skipped, invalid, assert,
    unsupported, collected, once (org.freedesktop.systemd1(5), JobRemoved).
    """

    result: str
    job: int | None = None
    why: str = ""

    @property
    def done(self) -> bool:
        """True only when systemd said `done`."""
        return self.result == "done"


class Systemd(Protocol):
    """PID 1 over D-Bus. Every method takes its own deadline and raises SystemdError past it."""

    async def unit(self, name: str) -> UnitState:
        """Return the unit's state; load_state `not-found` where there is none.

        Raises SystemdError if PID 1 does not answer.
        """

    async def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one RestartUnit job (mode replace) and wait for its end."""

    async def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one StartUnit job (mode replace) and wait for its end."""

    async def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one StopUnit job (mode replace) and wait for its end."""

    async def reset_failed(self, name: str) -> None:
        """Clear the unit's start-limit counter and failed state."""

    async def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit that holds `pid`, or None."""


class SystemdError(Exception):
    """PID 1 refused, did not answer in time, or the bus is gone; `kind` is refused|timeout|disconnected."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
