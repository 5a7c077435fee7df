"""A small HTTP client that always comes back: one deadline over the whole call, a cap on bytes, no redirects.

The usual libraries time each read, so a server that sends a byte now and then holds them for ever.
Here the socket is shut down at the deadline, whatever it is doing. A redirect is an answer like any
other: following it would let one service answer for another.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from .bounded import Bounded, Overrun
from .site import HttpReply

_CHUNK = 1 << 16
_AGENT = "bandog"


class HttpClient:
    """Asks HTTP servers; any thread may call it. TLS trusts the system's store (or SSL_CERT_FILE).

    A proxy from the environment is used, except for names that `no_proxy` holds and for this host.
    """

    def __init__(self) -> None:
        self._threads = Bounded("bandog-http")
        # Read once at start: later the disk may be gone.
        self._tls = ssl.create_default_context()
        self._proxies = urllib.request.getproxies()

    @property
    def overrun(self) -> int:
        """How many calls were given up and still hold a thread."""
        return self._threads.overrun

    def request(
        self,
        method: str,
        url: str,
        *,
        deadline: timedelta,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = 1 << 20,
    ) -> HttpReply:
        """Return the answer, or one with `error`: `refused`, `timeout`, or words. Never raises.

        At most `limit` bytes of the body are read; the rest of it is dropped with the connection.
        """
        try:
            target = urlsplit(url)
            connection, place = self._connection(target, deadline)
        except ValueError as error:
            return HttpReply(error=f"bad URL: {error}")
        sent = {"User-Agent": _AGENT, "Connection": "close", **(headers or {})}

        opened: list[socket.socket] = []

        def ask() -> HttpReply:
            try:
                connection.connect()
                # http.client forgets the socket as soon as the answer owns it.
                opened.append(connection.sock)
                connection.request(method, place, body=body, headers=sent)
                answer = connection.getresponse()
                return HttpReply(status=answer.status, body=_read(answer, limit))
            finally:
                connection.close()

        try:
            return self._threads.call(ask, deadline=deadline, abort=lambda: _shut(opened))
        except (Overrun, TimeoutError):
            return HttpReply(error="timeout")
        except ConnectionRefusedError:
            return HttpReply(error="refused")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return HttpReply(error=str(error) or type(error).__name__)

    def _connection(self, target: SplitResult, deadline: timedelta) -> tuple[http.client.HTTPConnection, str]:
        """Return an unopened connection and what to ask it for."""
        if target.scheme not in ("http", "https") or not target.hostname:
            raise ValueError("http:// or https:// and a host are needed")
        secure, host, timeout = target.scheme == "https", target.hostname, deadline.total_seconds()
        port = target.port or (443 if secure else 80)
        place = (target.path or "/") + (f"?{target.query}" if target.query else "")
        proxy = self._proxy(target.scheme, host)
        if proxy is None:
            return self._direct(secure, host, port, timeout), place
        via_host, via_port = proxy
        if not secure:
            return http.client.HTTPConnection(via_host, via_port, timeout=timeout), (
                f"http://{target.netloc.rpartition('@')[2]}{place}"
            )
        tunnel = self._direct(True, via_host, via_port, timeout)
        tunnel.set_tunnel(host, port)
        return tunnel, place

    def _direct(self, secure: bool, host: str, port: int, timeout: float) -> http.client.HTTPConnection:
        if secure:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _proxy(self, scheme: str, host: str) -> tuple[str, int] | None:
        via = self._proxies.get(scheme)
        if not via or is_local(host) or urllib.request.proxy_bypass(host):
            return None
        parts = urlsplit(via if "://" in via else f"http://{via}")
        return (parts.hostname, parts.port or 3128) if parts.hostname else None


def is_local(host: str) -> bool:
    """True for names and addresses of this host itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read(answer: http.client.HTTPResponse, limit: int) -> bytes:
    body = bytearray()
    while len(body) < limit:
        piece = answer.read1(min(_CHUNK, limit - len(body)))
        if not piece:
            break
        body += piece
    return bytes(body)


def _shut(opened: list[socket.socket]) -> None:
    """Make a thread that waits on the socket return; before there is one, its own time-out ends it."""
    for held in opened:
        try:
            held.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
