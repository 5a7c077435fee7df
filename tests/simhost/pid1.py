"""PID 1 that outlives the agent: it stays in the test's process and answers over a socket.

The test's side keeps a list of every disruptive call, and looks for each in the agent's database at
that very moment: an act without a committed intent is seen here, whatever the agent says of itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from bandog import JobOutcome, SystemdError, UnitState, from_json, to_json
from bandog.store.reader import Reader, StoreUnreadable

from .units import SimulatedSystemd

JOBS = ("restart", "start", "stop")
LOOK = 2.0
ASK = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One disruptive call. `request` is the one whose intent stood in the database, "" if none did."""

    verb: str
    target: str
    request: str


class Pid1Server:
    """Serves `systemd` on a socket, in a thread of its own.

    `mode` is ok, down (connections break) or hang (no answer until it is something else). `pause`
    gives how many seconds a job takes, before and after it is carried out.
    """

    def __init__(
        self,
        path: Path,
        systemd: SimulatedSystemd,
        database: Path,
        pause: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.path = path
        self.systemd = systemd
        self.calls: list[Call] = []
        self.mode = "ok"
        self.pause = pause
        self._database = database
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pid1", daemon=True)
        self._server: asyncio.AbstractServer | None = None
        self._clients: set[asyncio.Task[None]] = set()

    def start(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(5)
        return self

    async def _open(self) -> None:
        self._server = await asyncio.start_unix_server(self._greet, str(self.path))

    def close(self) -> None:
        """Stop serving."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        with contextlib.suppress(OSError, ValueError), contextlib.closing(writer):
            if self.mode == "down":
                return
            asked = json.loads(await reader.readline())
            while self.mode == "hang":  # noqa: ASYNC110  (set from another thread)
                await asyncio.sleep(0.02)
            writer.write(json.dumps(to_json(await self._answer(**asked))).encode() + b"\n")
            await writer.drain()

    async def _answer(self, do: str, name: str) -> Any:
        if do == "unit":
            return await self.systemd.unit(name)
        if do == "unit_of_pid":
            return await self.systemd.unit_of_pid(int(name))
        if do == "acted":
            return any(call.verb == "act" and call.target == name for call in self.calls)
        if do == "act" or do in JOBS:
            self.calls.append(Call(verb=do, target=name, request=await self._intent(do, name)))
            await asyncio.sleep(self.pause())
            outcome = await getattr(self.systemd, do)(name, deadline=ASK) if do in JOBS else None
            await asyncio.sleep(self.pause())
            return outcome
        return None

    async def _intent(self, do: str, name: str) -> str:
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._recorded, do, name), LOOK)
        except (TimeoutError, StoreUnreadable):
            return ""

    def _recorded(self, do: str, name: str) -> str:
        """Return the request that is on record as under way for this call."""
        with Reader(self._database) as reader:
            alive = [one for incident in reader.incidents(limit=5000) for one in reader.requests(incident.id)]
        for one in alive:
            if one.started is None or one.state.ended:
                continue
            if one.request.id == name or (do in JOBS and f"{one.request.service}.service" == name):
                return one.request.id
        return ""


class Pid1Link:
    """The agent's side; implements the `Systemd` protocol. One connection a call."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def _ask(self, do: str, name: str, deadline: timedelta = ASK) -> Any:
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                with contextlib.closing(writer):
                    writer.write(json.dumps({"do": do, "name": name}).encode() + b"\n")
                    line = await reader.readline()
        except TimeoutError:
            raise SystemdError("timeout", f"no answer within {deadline.total_seconds():g} s") from None
        except OSError as error:
            raise SystemdError("disconnected", str(error)) from error
        if not line:
            raise SystemdError("disconnected", "the bus is gone")
        return json.loads(line)

    async def unit(self, name: str) -> UnitState:
        """Return the unit's state."""
        return from_json(UnitState, await self._ask("unit", name))

    async def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for a restart."""
        return from_json(JobOutcome, await self._ask("restart", name, deadline))

    async def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for a start."""
        return from_json(JobOutcome, await self._ask("start", name, deadline))

    async def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for a stop."""
        return from_json(JobOutcome, await self._ask("stop", name, deadline))

    async def reset_failed(self, name: str) -> None:
        """Ask for it."""
        await self._ask("reset_failed", name)

    async def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit of a process."""
        answer = await self._ask("unit_of_pid", str(pid))
        return answer if isinstance(answer, str) else None
