"""Tells systemd how we are: ready, reloading, stopping, alive (sd_notify(3)).

The ping is sent from the loop only, so that a loop that hangs gets us restarted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from datetime import timedelta

from ..host.clock import monotonic_usec

_STATUS_LIMIT = 500


class Notifier:
    """The datagrams of sd_notify(3); every method returns at once and never raises.

    Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of `environ`, so that no child of ours
    can speak for us. Without NOTIFY_SOCKET it does nothing.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self._socket = _connected(address)
        ours = not pid or pid == str(os.getpid())
        self.watchdog: timedelta | None = (
            timedelta(microseconds=int(usec))
            if self._socket is not None and ours and usec.isascii() and usec.isdigit() and 0 < int(usec) < 10**15
            else None
        )
        """How long systemd waits for a ping; None when it waits for none."""
        self.dropped = 0
        """How many datagrams systemd did not take."""

    @property
    def under_systemd(self) -> bool:
        """Whether anyone listens."""
        return self._socket is not None

    def ready(self, status: str = "") -> None:
        """Say that the start, or a reload, is complete."""
        self._send("READY=1", *_status(status))

    def reloading(self) -> None:
        """Say that a reload begins; `ready` ends it. The stamp is what Type=notify-reload asks for."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic_usec()}")

    def stopping(self) -> None:
        """Say that we are going down."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(*_status(text))

    def ping(self) -> None:
        """Say that the loop goes round; to be called at least every third of `watchdog`."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; later calls do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None or not lines:
            return
        try:
            self._socket.send("\n".join(lines).encode("utf-8", "replace"))
        except OSError:
            self.dropped += 1  # PID 1 is busy or being replaced; blocking on it is what we must not do


def _status(text: str) -> tuple[str, ...]:
    line = " ".join(text.split())[:_STATUS_LIMIT]
    return (f"STATUS={line}",) if line else ()


def _connected(address: str) -> socket.socket | None:
    """Return a non-blocking datagram socket to `address` (a path, or @ and an abstract name), or None."""
    if not address.startswith(("/", "@")):
        return None
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        link.connect("\0" + address[1:] if address.startswith("@") else address)
    except (OSError, ValueError):
        link.close()
        return None
    link.setblocking(False)
    return link
