"""PID 1 over D-Bus: unit states and jobs, with a deadline on everything and a way around a dead bus.

Source: org.freedesktop.systemd1(5). Tried with systemd 252 and 257.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from dbus_fast import Variant

from .paths import Paths
from .systemd_link import Link, Refused
from .systemd_types import JobOutcome, SystemdError, UnitState

log = logging.getLogger(__name__)

_UNIT_PREFIX = "/org/freedesktop/systemd1/unit/"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_UNIT = "org.freedesktop.systemd1.Unit"
_RETRY = 0.2
_CONNECT = timedelta(seconds=2)
# The types with a process tree; their own interface holds main pid, result and cgroup.
_WITH_PROCESSES = {"service": "Service", "scope": "Scope", "mount": "Mount", "socket": "Socket"}


def unit_path(name: str) -> str:
    """Return the object path of a unit: all but ASCII letters and digits as `_XX` (bus_label_escape)."""
    escaped = "".join(
        char if char.isascii() and char.isalnum() and not (place == 0 and char.isdigit()) else f"_{ord(char):02x}"
        for place, char in enumerate(name.encode("utf-8", "surrogateescape").decode("latin-1"))
    )
    return _UNIT_PREFIX + (escaped or "_")


def unit_name(path: str) -> str:
    """Return the unit's name from its object path."""
    label = path.removeprefix(_UNIT_PREFIX)
    if label == "_":
        return ""
    raw = re.sub(rb"_([0-9a-f]{2})", lambda match: bytes((int(match[1], 16),)), label.encode())
    return raw.decode("utf-8", "backslashreplace")


class SystemdBus:
    """The real PID 1; implements `systemd_types.Systemd`. For the loop only.

    A method that raises SystemdError has asked for nothing, or only for a state. Once a job was
    asked for, every end is a `JobOutcome`: `refused` when PID 1 said no, `timeout` past the
    deadline (the job goes on), `disconnected` when its result can no longer be learnt.
    """

    def __init__(
        self,
        *,
        bus: str | None,
        private: str | None,
        call_deadline: timedelta = timedelta(seconds=5),
    ) -> None:
        """`bus` and `private` are D-Bus addresses, tried in this order; None leaves one out."""
        self._addresses = [(address, kind) for address, kind in ((bus, False), (private, True)) if address]
        self._call_deadline = call_deadline
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._early: dict[str, str] = {}
        self._asking = 0

    @classmethod
    def of_host(cls, paths: Paths) -> SystemdBus:
        """Return the client for the host below `paths`: its system bus, then PID 1's private socket."""
        return cls(
            bus=f"unix:path={paths.at('/run/dbus/system_bus_socket')}",
            private=f"unix:path={paths.at('/run/systemd/private')}",
        )

    @property
    def connected(self) -> str | None:
        """`bus` or `private` while a connection stands, else None."""
        if self._link is None or not self._link.alive:
            return None
        return "private" if self._link.private else "bus"

    async def connect(self) -> None:
        """Connect now rather than at the first call; raises SystemdError."""
        await self._linked()

    def close(self) -> None:
        """Drop the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- states -------------------------------------------------------------------------------

    async def unit(self, name: str) -> UnitState:
        """Return the unit's state; load_state `not-found` where there is none."""
        kind = _WITH_PROCESSES.get(name.rpartition(".")[2])
        own = f"org.freedesktop.systemd1.{kind}" if kind else None
        unit, service = await asyncio.gather(self._properties(name, _UNIT), self._properties(name, own))
        return _unit_state(name, unit, service)

    async def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit that holds `pid`, or None when it has gone or belongs to none."""
        try:
            (path,) = await self._ask("GetUnitByPID", "u", pid)
        except Refused as error:
            if error.name in (
                "org.freedesktop.systemd1.NoUnitForPID",
                "org.freedesktop.systemd1.NoSuchProcess",
                "org.freedesktop.DBus.Error.UnixProcessIdUnknown",
            ):
                return None
            raise SystemdError("refused", str(error)) from error
        return unit_name(path)

    async def reset_failed(self, name: str) -> None:
        """Clear the unit's start-limit counter and failed state; SystemdError `refused` for an unknown unit."""
        try:
            await self._ask("ResetFailedUnit", "s", name)
        except Refused as error:
            raise SystemdError("refused", str(error)) from error

    async def reload(self, *, deadline: timedelta) -> None:
        """Let PID 1 read its unit files again; raises SystemdError. For a person's command alone.

        Never at the time of a fault, and never unasked: it cuts running GPU containers off their devices.
        """
        link = await self._linked()
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                await link.call("Reload", "")
        except TimeoutError as error:
            self._drop(link)
            raise SystemdError("timeout", "systemd did not end its reload") from error
        except Refused as error:
            raise SystemdError("refused", str(error)) from error

    # -- jobs ---------------------------------------------------------------------------------

    async def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one RestartUnit job (mode replace) and wait for its end."""
        return await self._job("RestartUnit", name, deadline)

    async def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one StartUnit job (mode replace) and wait for its end."""
        return await self._job("StartUnit", name, deadline)

    async def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one StopUnit job (mode replace) and wait for its end."""
        return await self._job("StopUnit", name, deadline)

    async def _job(self, member: str, name: str, deadline: timedelta) -> JobOutcome:
        until = asyncio.get_running_loop().time() + deadline.total_seconds()
        link = await self._linked()
        self._asking += 1
        job: int | None = None
        try:
            try:
                async with asyncio.timeout(self._call_deadline.total_seconds()):
                    (path,) = await link.call(member, "ss", name, "replace")
            except TimeoutError:
                self._drop(link)
                return JobOutcome(result="timeout", why=f"systemd did not answer {member} {name}")
            except Refused as error:
                return JobOutcome(result="refused", why=str(error))
            except SystemdError as error:
                return JobOutcome(result=error.kind, why=f"{member} {name}: {error}")
            job = int(path.rpartition("/")[2])
            # The future is entered without an await after the reply: no signal can slip between.
            end = self._await_job(path)
        finally:
            self._asking -= 1
            if not self._asking:
                self._early.clear()
        try:
            async with asyncio.timeout_at(until):
                return await self._job_end(path, job, end)
        except TimeoutError:
            return JobOutcome(result="timeout", job=job, why=f"{member} {name} has not ended within {deadline}")
        finally:
            self._waiting.pop(path, None)

    def _await_job(self, path: str) -> asyncio.Future[str]:
        end = self._waiting.get(path)
        if end is None:
            end = self._waiting[path] = asyncio.get_running_loop().create_future()
        if path in self._early and not end.done():
            end.set_result(self._early[path])
        return end

    async def _job_end(self, path: str, job: int, end: asyncio.Future[str]) -> JobOutcome:
        """Wait for JobRemoved over as many connections as it takes."""
        while True:
            link = self._link
            if link is not None and link.alive:
                waits: set[asyncio.Future[Any]] = {end, link.lost}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                return JobOutcome(result=end.result(), job=job)
            try:
                await self._ask("GetJob", "u", job)
            except Refused:
                if end.done():
                    continue
                return JobOutcome(result="disconnected", job=job, why="the job ended while systemd could not be heard")
            except SystemdError as error:
                log.info("systemd cannot be reached while a job runs job=%d why=%s", job, error)
                await asyncio.sleep(_RETRY)

    def _on_signal(self, member: str, body: Sequence[Any]) -> None:
        if member != "JobRemoved" or len(body) != 4:
            return
        path, result = str(body[1]), str(body[3])
        end = self._waiting.get(path)
        if end is not None and not end.done():
            end.set_result(result)
        elif self._asking:
            self._early[path] = result

    # -- calls --------------------------------------------------------------------------------

    async def _properties(self, name: str, interface: str | None) -> Mapping[str, Variant]:
        if interface is None:
            return {}
        try:
            (found,) = await self._ask("GetAll", "s", interface, path=unit_path(name), interface=_PROPERTIES)
        except Refused as error:
            raise SystemdError("refused", f"{name}: {error}") from error
        return dict(found)

    async def _ask(self, member: str, signature: str, *body: Any, **where: str) -> list[Any]:
        """Make one call within the call deadline; raises Refused or SystemdError."""
        link = await self._linked()
        try:
            async with asyncio.timeout(self._call_deadline.total_seconds()):
                return await link.call(member, signature, *body, **where)
        except TimeoutError as error:
            self._drop(link)
            raise SystemdError("timeout", f"systemd did not answer {member}") from error

    def _drop(self, link: Link) -> None:
        """Give up a connection that does not answer, so that the next call makes a fresh one."""
        link.close()
        if self._link is link:
            self._link = None

    async def _linked(self) -> Link:
        async with self._connecting:
            if self._link is not None and self._link.alive:
                return self._link
            problems = []
            for address, private in self._addresses:
                try:
                    async with asyncio.timeout(_CONNECT.total_seconds()):
                        self._link = await Link.open(address, private=private, on_signal=self._on_signal)
                except TimeoutError:
                    problems.append(f"{address}: no answer within {_CONNECT.total_seconds():.0f} s")
                except SystemdError as error:
                    problems.append(str(error))
                else:
                    return self._link
            raise SystemdError("disconnected", "; ".join(problems) or "no address of systemd is known")


def _unit_state(name: str, unit: Mapping[str, Variant], own: Mapping[str, Variant]) -> UnitState:
    """Build the value from the properties as GetAll returns them; what an old systemd lacks keeps its default."""

    def get(source: Mapping[str, Variant], key: str, default: Any) -> Any:
        return source[key].value if key in source else default

    def usec(source: Mapping[str, Variant], key: str, default: int = 0) -> timedelta:
        return timedelta(microseconds=get(source, key, default))

    main_pid = int(get(own, "MainPID", 0))
    return UnitState(
        name=get(unit, "Id", name),
        load_state=get(unit, "LoadState", "not-found"),
        active_state=get(unit, "ActiveState", "inactive"),
        sub_state=get(unit, "SubState", "dead"),
        result=get(own, "Result", "success"),
        type_=get(own, "Type", "simple"),
        main_pid=main_pid if main_pid > 0 else None,
        invocation_id=bytes(get(unit, "InvocationID", b"")).hex(),
        n_restarts=int(get(own, "NRestarts", 0)),
        restart=get(own, "Restart", "no"),
        kill_mode=get(own, "KillMode", "control-group"),
        control_group=get(own, "ControlGroup", ""),
        active_enter=usec(unit, "ActiveEnterTimestampMonotonic"),
        inactive_enter=usec(unit, "InactiveEnterTimestampMonotonic"),
        state_change=usec(unit, "StateChangeTimestampMonotonic"),
        fragment_path=get(unit, "FragmentPath", ""),
        drop_in_paths=tuple(get(unit, "DropInPaths", ())),
        environment_files=tuple(str(path) for path, _ in get(own, "EnvironmentFiles", ())),
        unit_file_state=get(unit, "UnitFileState", ""),
        need_daemon_reload=bool(get(unit, "NeedDaemonReload", False)),
        job=(get(unit, "Job", (0, "/"))[0]) or None,
        timeout_stop=usec(own, "TimeoutStopUSec", 90_000_000),
        timeout_start=usec(own, "TimeoutStartUSec", 90_000_000),
    )
