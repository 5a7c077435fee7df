"""One connection to PID 1: over the system bus, or over its private socket when the bus is gone.

A link lives until it breaks and is then replaced, never repaired: dbus-fast does not reconnect, and
a fresh connection works as soon as the other side is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dbus_fast import Message, MessageFlag, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.aio.message_bus import _MessageWriter
from dbus_fast.aio.message_reader import build_message_reader
from dbus_fast.errors import DBusFastError

from .systemd_types import SystemdError

log = logging.getLogger(__name__)

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
_BUS = "org.freedesktop.DBus"
_BUS_PATH = "/org/freedesktop/DBus"

# The bus or PID 1 could not take the call; nothing was refused.
_GONE = {
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.Disconnected",
    "org.freedesktop.DBus.Error.NoServer",
}
_LATE = {
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.Timeout",
    "org.freedesktop.DBus.Error.TimedOut",
}
# PID 1 may leave the first call on its private socket unanswered, so it is asked again.
_PINGS = 5


class Refused(Exception):
    """PID 1 answered with an error; `name` is the D-Bus error name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text or name)
        self.name = name


class PeerBus(MessageBus):
    """A connection without a bus in between, as PID 1's private socket is: no Hello, no match rules."""

    async def connect(self) -> PeerBus:
        """Connect and authenticate; raises OSError or AuthError."""
        transport, options = self._bus_address[0]
        sock, stream, address = self._create_socket_for_transport(transport, options)
        sock.setblocking(False)
        self._sock, self._stream, self._fd = sock, stream, sock.fileno()
        try:
            await self._loop.sock_connect(sock, address)
            self._writer = _MessageWriter(self)
            await self._authenticate()
        except BaseException:
            stream.close()
            sock.close()
            raise
        self._loop.add_reader(
            self._fd,
            build_message_reader(sock, self._process_message, self._finalize, self._negotiate_unix_fd),
        )
        # The writer sends nothing before the connection has a name; here nobody gives us one.
        self.unique_name = ":private"
        return self


class Link:
    """A live connection. `on_signal` gets each signal of PID 1's manager: member and arguments.

    `lost` is done once the connection has gone.
    """

    def __init__(self, bus: MessageBus, *, private: bool, on_signal: Callable[[str, Sequence[Any]], None]) -> None:
        self._bus = bus
        self.private = private
        self._on_signal = on_signal
        self._owner: str | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watch = asyncio.ensure_future(self._wait_for_end())

    @classmethod
    async def open(cls, address: str, *, private: bool, on_signal: Callable[[str, Sequence[Any]], None]) -> Link:
        """Connect to `address` and subscribe to PID 1; raises SystemdError, or TimeoutError by the caller."""
        try:
            bus = PeerBus(address) if private else MessageBus(address)
            await bus.connect()
        except (OSError, EOFError, DBusFastError) as error:
            raise SystemdError("disconnected", f"{address}: {error}") from error
        link = cls(bus, private=private, on_signal=on_signal)
        try:
            await (link._greet_peer() if private else link._join_bus())
        except BaseException as error:
            link.close()
            if isinstance(error, Refused):
                raise SystemdError("disconnected", f"{address}: {error}") from error
            raise
        return link

    @property
    def alive(self) -> bool:
        """Whether calls can still be made."""
        return not self.lost.done()

    def close(self) -> None:
        """Drop the connection; calls under way end as disconnected."""
        self._lose()
        with contextlib.suppress(OSError):
            self._bus.disconnect()
        self._watch.cancel()

    async def call(
        self, member: str, signature: str = "", *body: Any, path: str = PATH, interface: str = MANAGER
    ) -> list[Any]:
        """Call a method of PID 1 and return its results.

        Raises Refused for an error reply, SystemdError when no answer can come. The caller sets the deadline.
        """
        return await self._call(
            Message(
                destination=NAME,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=list(body),
                flags=MessageFlag.NO_AUTOSTART,
            )
        )

    async def _call(self, message: Message) -> list[Any]:
        if not self.alive:
            raise SystemdError("disconnected", "the connection to systemd is gone")
        try:
            reply = await self._bus.call(message)
        except (OSError, EOFError, DBusFastError) as error:
            raise SystemdError("disconnected", f"the connection to systemd broke: {error}") from error
        if reply is None:
            raise SystemdError("disconnected", "the connection to systemd was closed")
        if reply.message_type is not MessageType.ERROR:
            return list(reply.body)
        name, text = reply.error_name or "", str(reply.body[0]) if reply.body else ""
        if name in _GONE:
            raise SystemdError("disconnected", text or name)
        if name in _LATE:
            raise SystemdError("timeout", text or name)
        raise Refused(name, text)

    async def _greet_peer(self) -> None:
        self._bus.add_message_handler(self._on_message)
        for left in range(_PINGS, 0, -1):
            try:
                async with asyncio.timeout(timedelta(milliseconds=500).total_seconds()):
                    await self.call("Ping", path="/", interface="org.freedesktop.DBus.Peer")
                    return
            except TimeoutError:
                if left == 1:
                    raise

    async def _join_bus(self) -> None:
        self._bus.add_message_handler(self._on_message)
        await self._add_match(f"type='signal',sender='{NAME}',path='{PATH}',interface='{MANAGER}'")
        await self._add_match(
            f"type='signal',sender='{_BUS}',interface='{_BUS}',member='NameOwnerChanged',arg0='{NAME}'"
        )
        (self._owner,) = await self._ask_bus("GetNameOwner", NAME)
        try:
            await self.call("Subscribe")
        except Refused as error:
            if error.name != f"{NAME}.AlreadySubscribed":
                raise

    async def _add_match(self, rule: str) -> None:
        await self._ask_bus("AddMatch", rule)

    async def _ask_bus(self, member: str, argument: str) -> list[Any]:
        return await self._call(
            Message(
                destination=_BUS,
                path=_BUS_PATH,
                interface=_BUS,
                member=member,
                signature="s",
                body=[argument],
            )
        )

    def _on_message(self, message: Message) -> None:
        """Pass on PID 1's signals. Anybody may send us a signal that looks like one, so the sender counts."""
        if message.message_type is not MessageType.SIGNAL:
            return
        if message.sender == _BUS and message.member == "NameOwnerChanged" and message.body[0] == NAME:
            self._owner = message.body[2] or None
            if self._owner is not None:  # PID 1 came back to the bus; it has forgotten who subscribed
                self._bus.send(
                    Message(
                        destination=NAME,
                        path=PATH,
                        interface=MANAGER,
                        member="Subscribe",
                        flags=MessageFlag.NO_REPLY_EXPECTED | MessageFlag.NO_AUTOSTART,
                    )
                )
        elif message.interface == MANAGER and (self.private or message.sender == self._owner):
            self._on_signal(message.member or "", message.body)

    async def _wait_for_end(self) -> None:
        try:
            await self._bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # dbus-fast leaves it so
        except (OSError, EOFError, DBusFastError) as error:
            log.info("the connection to systemd ended private=%s why=%s", self.private, error or "end of file")
        finally:
            self._lose()

    def _lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
