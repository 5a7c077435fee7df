"""The living site: what an action or a probe may use of this host, behind the protocol of `host.site`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from .domain.model import Request
from .host.child import Children
from .host.http import HttpClient
from .host.paths import Paths
from .host.resident import Resident
from .host.site import CanaryAnswer, ChildOutcome, Clock, Gpus, HttpReply, Readiness, Services
from .host.systemd_types import Systemd
from .services.inventory import Inventory

T = TypeVar("T")


class _NoServices:
    """Until the daemon hands in the real ones, which need the site themselves."""

    def names(self) -> tuple[str, ...]:
        return ()

    def get(self, name: str) -> Any:
        raise KeyError(name)

    def ready(self, name: str) -> Readiness:
        raise KeyError(name)

    def canary(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> CanaryAnswer:
        raise KeyError(name)

    def serves(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> Readiness:
        raise KeyError(name)


class LocalSite:
    """Joins the parts that `daemon` has built; holds no state of its own."""

    def __init__(
        self,
        *,
        paths: Paths,
        clock: Clock,
        systemd: Systemd,
        children: Children,
        http: HttpClient,
        hostname: str,
        loop: asyncio.AbstractEventLoop,
        note: Callable[[Request, Mapping[str, Any]], Awaitable[None]],
        tell: Callable[[Request, Sequence[str], str, bool], None],
    ) -> None:
        self.paths = paths
        self.clock = clock
        self.systemd = systemd
        self.services: Services = _NoServices()
        self.gpus: Gpus = Inventory(clock)  # until the daemon hands in the one with a memory
        self._children = children
        self._http = http
        self.hostname = hostname
        self._loop = loop
        self._note = note
        self._tell = tell

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        """Run a program under a deadline; workers only."""
        return self._children.run(argv, deadline=deadline, stdin=stdin, limit=limit, env=env)

    def resident(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Resident:
        """Return a program that stays and answers line by line; workers only."""
        return Resident(self._children, argv, env=env)

    def http(
        self,
        method: str,
        url: str,
        *,
        deadline: timedelta,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = 1 << 20,
    ) -> HttpReply:
        """Ask an HTTP server under a deadline; workers only."""
        return self._http.request(method, url, deadline=deadline, body=body, headers=headers, limit=limit)

    def wait(self, work: Coroutine[Any, Any, T], *, deadline: timedelta) -> T:
        """From a worker thread: run `work` on the loop; TimeoutError past `deadline`."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(deadline.total_seconds())
        except TimeoutError:
            future.cancel()
            raise

    def evidence_dir(self, incident: int) -> Path:
        """Return the directory for the evidence of one incident, made for root only."""
        folder = self.paths.state / "evidence" / str(incident)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    async def note(self, request: Request, **facts: Any) -> None:
        """Commit `facts` to the request before going on."""
        await self._note(request, facts)

    def tell(self, request: Request, *, to: Sequence[str], text: str = "", urgent: bool = False) -> None:
        """Tell people about the request's incident; thread-safe, returns at once."""
        self._loop.call_soon_threadsafe(self._tell, request, tuple(to), text, urgent)
