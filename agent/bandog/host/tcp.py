"""Does anybody listen there? One TCP connect with a deadline."""

from __future__ import annotations

import socket
from datetime import timedelta

from .bounded import Bounded, Overrun


class TcpProbe:
    """Opens and closes connections; any thread may call it."""

    def __init__(self) -> None:
        self._threads = Bounded("bandog-tcp")

    def open(self, host: str, port: int, *, deadline: timedelta) -> str | None:
        """Return None once connected, else why not: `refused`, `timeout`, or words. Never raises."""

        def connect() -> None:
            socket.create_connection((host, port), timeout=deadline.total_seconds()).close()

        try:
            self._threads.call(connect, deadline=deadline)
        except (Overrun, TimeoutError):
            return "timeout"
        except ConnectionRefusedError:
            return "refused"
        except (OSError, OverflowError, UnicodeError) as error:
            return str(error) or type(error).__name__
        return None
