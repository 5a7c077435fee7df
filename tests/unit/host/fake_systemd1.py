"""A small org.freedesktop.systemd1: on a private dbus-daemon, and on a socket of its own as PID 1 has one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dbus_fast import Message, MessageType, NameFlag, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.aio.message_bus import _MessageWriter
from dbus_fast.aio.message_reader import build_message_reader

from bandog.host.systemd import unit_name

MANAGER = "org.freedesktop.systemd1.Manager"
PATH = "/org/freedesktop/systemd1"

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow send_type="signal"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"""


class Daemon:
    """A dbus-daemon of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "bus"
        self.address = f"unix:path={self.socket}"
        self._config = folder / "bus.conf"
        self._config.write_text(CONFIG.format(socket=self.socket))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; returns once it listens."""
        self._process = await asyncio.create_subprocess_exec(
            "dbus-daemon",
            f"--config-file={self._config}",
            "--nofork",
            "--nosyslog",
            "--print-address",
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(5):
            await self._process.stdout.readline()

    async def stop(self) -> None:
        """End it, as a restart of the bus does."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)


class Peer(MessageBus):
    """The serving side of a connection without a bus: what PID 1 does on /run/systemd/private."""

    async def serve(self, sock: socket.socket) -> None:
        """Authenticate the caller as EXTERNAL and begin to read messages."""
        line = b""
        while line != b"BEGIN\r\n":
            line = b""
            while not line.endswith(b"\r\n"):  # byte by byte: messages follow BEGIN at once
                line += await self._loop.sock_recv(sock, 1)
            if b"AUTH" in line:
                await self._loop.sock_sendall(sock, b"OK 0123456789abcdef0123456789abcdef\r\n")
        self._sock, self._stream, self._fd = sock, sock.makefile("rwb"), sock.fileno()
        self._writer = _MessageWriter(self)
        self._loop.add_reader(self._fd, build_message_reader(sock, self._process_message, self._finalize, False))
        self.unique_name = ":peer"


async def hang_up(link: MessageBus) -> None:
    """Close a connection, whoever closed it first."""
    with contextlib.suppress(EOFError, OSError):
        link.disconnect()
        await link.wait_for_disconnect()  # type: ignore[no-untyped-call]  # dbus-fast's


class FakeManager:
    """The manager object: units as property maps, jobs that end when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.daemon = Daemon(folder)
        self.private_socket = folder / "private"
        self.private = f"unix:path={self.private_socket}"
        self.units: dict[str, dict[str, dict[str, Variant]]] = {}
        self.pids: dict[int, str] = {}
        self.calls: list[tuple[str, list[Any]]] = []
        self.jobs: dict[int, str] = {}
        self.silent: set[str] = set()
        self.silent_once: set[str] = set()
        self.auto: str | None = "done"
        self.signal_first = False
        self.subscribe_error: str | None = None
        self._job = 100
        self._links: list[MessageBus] = []
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.on_bus: MessageBus | None = None

    # -- life

    async def join_bus(self) -> None:
        """Start the bus and own the name on it."""
        await self.daemon.start()
        self.on_bus = await MessageBus(self.daemon.address).connect()
        self.on_bus.add_message_handler(self._handle)
        await self.on_bus.request_name("org.freedesktop.systemd1", NameFlag.DO_NOT_QUEUE)
        self._links.append(self.on_bus)

    async def leave_bus(self) -> None:
        """Let the bus die."""
        await self.daemon.stop()
        if self.on_bus is not None:
            await hang_up(self.on_bus)
            self._links.remove(self.on_bus)
            self.on_bus = None

    def listen(self) -> None:
        """Open the private socket."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.private_socket))
        self._listener.listen()
        self._listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            sock.setblocking(False)
            peer = Peer(self.private)
            peer.add_message_handler(self._handle)
            await peer.serve(sock)
            self._links.append(peer)

    async def drop_links(self) -> None:
        """Cut every private connection, as daemon-reexec does."""
        for link in [link for link in self._links if isinstance(link, Peer)]:
            await hang_up(link)
            self._links.remove(link)

    async def close(self) -> None:
        """Stop everything."""
        if self._accepting is not None:
            self._accepting.cancel()
        await self.drop_links()
        for link in self._links:
            await hang_up(link)
        if self._listener is not None:
            self._listener.close()
        await self.daemon.stop()

    # -- jobs

    def end_job(self, job: int, result: str) -> None:
        """Send JobRemoved on every connection."""
        unit = self.jobs.pop(job)
        self.signal_job(job, unit, result)

    def signal_job(self, job: int, unit: str, result: str) -> None:
        for link in (link for link in self._links if link.connected):
            link.send(
                Message(
                    message_type=MessageType.SIGNAL,
                    path=PATH,
                    interface=MANAGER,
                    member="JobRemoved",
                    signature="uoss",
                    body=[job, f"{PATH}/job/{job}", unit, result],
                )
            )

    # -- messages

    def _handle(self, message: Message) -> Message | bool | None:
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        member = message.member or ""
        self.calls.append((member, list(message.body)))
        if member in self.silent:
            return True
        if member in self.silent_once:
            self.silent_once.discard(member)
            return True
        answer: Callable[[Message], Message] | None = getattr(self, f"_on_{member}", None)
        if answer is None:
            return None
        return answer(message)

    def _error(self, message: Message, name: str, text: str) -> Message:
        return Message.new_error(message, f"org.freedesktop.systemd1.{name}", text)

    def _on_Ping(self, message: Message) -> Message:
        return Message.new_method_return(message)

    def _on_Subscribe(self, message: Message) -> Message:
        if self.subscribe_error:
            return self._error(message, self.subscribe_error, "Client is already subscribed.")
        return Message.new_method_return(message)

    def _on_GetAll(self, message: Message) -> Message:
        (interface,) = message.body
        name = unit_name(message.path or "")
        found = self.units.get(name)
        if found is None:
            stub = {"Id": Variant("s", name), "LoadState": Variant("s", "not-found")}
            found = {"org.freedesktop.systemd1.Unit": stub}
        return Message.new_method_return(message, "a{sv}", [found.get(interface, {})])

    def _on_GetUnitByPID(self, message: Message) -> Message:
        (pid,) = message.body
        if pid not in self.pids:
            return self._error(message, "NoUnitForPID", f"PID {pid} does not belong to any loaded unit.")
        return Message.new_method_return(message, "o", [self.pids[pid]])

    def _on_ResetFailedUnit(self, message: Message) -> Message:
        (name,) = message.body
        if name not in self.units:
            return self._error(message, "NoSuchUnit", f"Unit {name} not loaded.")
        return Message.new_method_return(message)

    def _on_GetJob(self, message: Message) -> Message:
        (job,) = message.body
        if job not in self.jobs:
            return self._error(message, "NoSuchJob", f"Job {job} does not exist.")
        return Message.new_method_return(message, "o", [f"{PATH}/job/{job}"])

    def _on_RestartUnit(self, message: Message) -> Message:
        name, mode = message.body
        assert mode == "replace"
        if name not in self.units:
            return self._error(message, "NoSuchUnit", f"Unit {name} not found.")
        self._job += 1
        job = self._job
        self.jobs[job] = name
        if self.auto is not None:
            if self.signal_first:
                self.end_job(job, self.auto)
            else:
                asyncio.get_running_loop().call_soon(self.end_job, job, self.auto)
        return Message.new_method_return(message, "o", [f"{PATH}/job/{job}"])

    _on_StartUnit = _on_RestartUnit
    _on_StopUnit = _on_RestartUnit
