"""What an action or probe may use, answered for by the test and kept for it to look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from ..domain.model import Request
from ..host.paths import Paths
from ..host.site import Answer, ChildOutcome, HttpReply
from ..services.inventory import Inventory
from .clock import FakeClock
from .host import FakeHost
from .services import FakeServices
from .systemd import FakeSystemd

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message that an action asked for."""

    request: Request
    to: tuple[str, ...]
    text: str
    urgent: bool


class FakeResident:
    """A program that stays, answered for by the test; implements `site.Resident`."""

    def __init__(self, site: FakeSite, argv: tuple[str, ...]) -> None:
        self.pid: int | None = None
        self.stuck = False
        self._site = site
        self._argv = argv

    def ask(self, line: bytes, *, deadline: timedelta) -> Answer:
        """Answer by the site's `resident_results`."""
        if self.pid is None:
            self._site.children.append(self._argv)
            self.pid = 4000 + len(self._site.children)
        answers = self._site.resident_results
        answer = answers(self._argv, line) if answers else Answer(line=None, why="it ended with status 0")
        if answer.line is None:
            self.end()
        self.stuck = answer.stuck
        return answer

    def end(self) -> None:
        """Let the next question start it anew."""
        self.pid = None


@dataclass
class FakeSite:
    """A site over a `FakeHost`; implements `site.Site` and keeps what was asked of it.

    `child_results`, `resident_results` and `http_results` are functions that answer; without them every
    program ends with 0, every resident one without an answer, and every URL refuses the connection.
    `gpus` is the real inventory over the fake clock: let it `take` a look.
    """

    host: FakeHost
    systemd: FakeSystemd = field(default=None)  # type: ignore[assignment]  # filled in below
    services: FakeServices = field(default_factory=FakeServices)
    gpus: Inventory = field(default=None)  # type: ignore[assignment]  # filled in below
    child_results: Callable[[Sequence[str]], ChildOutcome] | None = None
    resident_results: Callable[[Sequence[str], bytes], Answer] | None = None
    http_results: Callable[[str, str], HttpReply] | None = None
    children: list[tuple[str, ...]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        if self.systemd is None:
            self.systemd = FakeSystemd(self.host.clock)
        if self.gpus is None:
            self.gpus = Inventory(self.host.clock)

    @property
    def paths(self) -> Paths:
        """Where the fake trees lie."""
        return self.host.paths

    @property
    def clock(self) -> FakeClock:
        """The fake clock."""
        return self.host.clock

    @property
    def hostname(self) -> str:
        """The fake host's name."""
        return "gpu07"

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        """Log the program and answer by `child_results`."""
        self.children.append(tuple(argv))
        return self.child_results(argv) if self.child_results else ChildOutcome(code=0)

    def resident(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> FakeResident:
        """Return one that answers by `resident_results`; its start is logged among `children`."""
        return FakeResident(self, tuple(argv))

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
        """Log the call and answer by `http_results`."""
        self.requests.append((method, url))
        return self.http_results(method, url) if self.http_results else HttpReply(error="refused")

    def wait(self, work: Coroutine[Any, Any, T], *, deadline: timedelta) -> T:
        """Run `work` on `loop` where the test has one in another thread, else on a loop of its own."""
        if self.loop is not None:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result(deadline.total_seconds())
        return asyncio.run(asyncio.wait_for(work, deadline.total_seconds()))

    def evidence_dir(self, incident: int) -> Path:
        """Return a directory of the incident below the fake state directory."""
        place = self.paths.state / "evidence" / str(incident)
        place.mkdir(parents=True, exist_ok=True)
        return place

    async def note(self, request: Request, **facts: Any) -> None:
        """Keep the note in `notes`."""
        self.notes.append((request.id, facts))

    def tell(self, request: Request, *, to: Sequence[str], text: str = "", urgent: bool = False) -> None:
        """Keep the message in `told`."""
        self.told.append(Told(request=request, to=tuple(to), text=text, urgent=urgent))
