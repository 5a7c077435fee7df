"""Real servers on loopback that keep what they are sent: SMTP and HTTP, on an asyncio loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from email import message_from_bytes
from email.message import Message
from typing import Any, Self


class Sink:
    """A server in a thread; `wait(n)` returns once it has got n things. `mode` breaks it."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.asked = 0
        self.mode = "ok"  # ok | refuse (an error answer) | hang (no answer until `released`)
        self._arrived = threading.Condition()
        self._released = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._server = self._loop.run_until_complete(asyncio.start_server(self._guarded, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        # A connection that was just accepted becomes a task of ours some rounds later. One that is cancelled before
        # that, or before its first step, would leave its socket open.
        while others := [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]:
            await asyncio.sleep(0)
            for one in others:
                if getattr(one.get_coro(), "__name__", "") == "_guarded":
                    one.cancel()
            await asyncio.wait(others, timeout=0.1)

    def release(self) -> None:
        """Let what hangs go on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def wait(self, count: int, seconds: float = 10) -> list[Any]:
        """Return what came once there are `count`; fails after `seconds`."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.got) >= count, seconds), f"only {len(self.got)} of {count}"
            return list(self.got)

    def wait_asked(self, count: int, seconds: float = 10) -> None:
        """Return once `count` deliveries were begun, taken or not."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.asked >= count, seconds), f"asked {self.asked} times"

    def _note(self, thing: Any = None) -> None:
        with self._arrived:
            if thing is None:
                self.asked += 1
            else:
                self.got.append(thing)
            self._arrived.notify_all()

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk to one client."""
        raise NotImplementedError


class SmtpSink(Sink):
    """Takes mail (RFC 5321, as much as smtplib needs); `got` holds parsed messages."""

    @property
    def url(self) -> str:
        """The Apprise URL of this sink."""
        return f"mailto://127.0.0.1:{self.port}?from=bandog@example.com&to=oncall@example.com&smtp=127.0.0.1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 sink ESMTP\r\n")
        while line := (await reader.readline()).strip().upper():
            if line.startswith((b"EHLO", b"HELO")):
                writer.write(b"250-sink\r\n250 8BITMIME\r\n")
            elif line == b"DATA":
                self._note()
                if self.mode == "hang":
                    await self._released.wait()
                if self.mode == "refuse":
                    writer.write(b"451 try again later\r\n")
                    continue
                writer.write(b"354 go on\r\n")
                text = await reader.readuntil(b"\r\n.\r\n")
                message: Message = message_from_bytes(text.removesuffix(b".\r\n"))
                writer.write(b"250 taken\r\n")
                await writer.drain()
                self._note(message)
            elif line == b"QUIT":
                writer.write(b"221 bye\r\n")
                return
            else:
                writer.write(b"250 ok\r\n")


class WebhookSink(Sink):
    """Takes JSON by POST; `got` holds the bodies."""

    @property
    def url(self) -> str:
        """The Apprise URL of this sink."""
        return f"json://127.0.0.1:{self.port}/"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
        body = await reader.readexactly(length)
        self._note()
        if self.mode == "hang":
            await self._released.wait()
        taken = self.mode != "refuse"
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % (b"200 OK" if taken else b"503 No")
        )
        await writer.drain()
        if taken:
            self._note(json.loads(body))
