"""The seam between us and the machine, as protocols: what a detector may ask, what an action may use.

The daemon hands out the real ones, `bandog.testing` the fakes; both pass the same tests.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..domain.gpus import GpuEvent, GpuLook, KnownGpu, Look
from ..domain.model import Instant, Request
from .paths import Paths
from .systemd_types import Systemd

T = TypeVar("T")


class Clock(Protocol):
    """All clocks of the host."""

    def now(self) -> Instant:
        """Return this moment on every clock."""

    def at_kernel_time(self, usec: int) -> Instant:
        """Return the instant of a kernel time stamp (microseconds) or CLOCK_MONOTONIC of this boot."""

    async def sleep(self, duration: timedelta) -> None:
        """Wait on the loop."""


class Host(Protocol):
    """What `unsupported` may look at."""

    @property
    def paths(self) -> Paths:
        """Where the trees lie."""

    @property
    def clock(self) -> Clock:
        """The clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """How a child ended. `code` is its exit status (negative: signal), None when it was given up.

    `stuck` is true when it did not even die of SIGKILL in time (a task in D state) and was abandoned.
    """

    code: int | None
    out: bytes = b""
    err: bytes = b""
    timed_out: bool = False
    stuck: bool = False

    @property
    def ok(self) -> bool:
        """True when it ended by itself with status 0."""
        return self.code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a resident program answered: `line` without its end, or None and `why`.

    `timed_out`: it did not answer in time and was ended; `stuck`: it, or an earlier one, did not even die of
    SIGKILL and is still there, so that none is started.
    """

    line: bytes | None
    why: str = ""
    timed_out: bool = False
    stuck: bool = False


class Resident(Protocol):
    """A program of ours that stays and answers line by line. Blocking: for workers."""

    @property
    def pid(self) -> int | None:
        """The living child, None where there is none."""

    @property
    def stuck(self) -> bool:
        """True while a child of this program that could not be ended is still there; then none is started."""

    def ask(self, line: bytes, *, deadline: timedelta) -> Answer:
        """Say one line and return the one that comes back, 3 s after `deadline` at the latest; starts the program
        where it does not run."""

    def end(self) -> None:
        """End the program; the next question starts it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """An HTTP answer, or `error` when none came: `refused` (nobody listens), `timeout`, or words."""

    status: int | None = None
    body: bytes = b""
    error: str | None = None

    @property
    def ok(self) -> bool:
        """True for a 2xx answer."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a service serves: True, False, or None when that cannot be told (a time-out)."""

    ready: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnswer:
    """What came of one short completion. `ok` is True for tokens, False for an answer that no healthy
    server gives, None where that cannot be told: refused, timed out, no key, not let in, no canary.

    `why` is one line for people; `model` the name that was asked, "" before it was known; `took` the time of
    the whole exchange; `tokens` those of the answer, None where the server does not count them.
    """

    ok: bool | None
    why: str
    model: str = ""
    took: timedelta = timedelta()
    tokens: int | None = None

    @property
    def seconds(self) -> float:
        """`took` in seconds, for facts."""
        return self.took.total_seconds()


class Services(Protocol):
    """The services that the operator named, and what can be learnt of each. Blocking: for workers."""

    def names(self) -> tuple[str, ...]:
        """Return every service's name, in start order."""

    def get(self, name: str) -> Any:
        """Return the `services.registry.Service`; KeyError if unknown."""

    def ready(self, name: str) -> Readiness:
        """Ask the service once whether it serves, by its `ready:`; at most a few seconds."""

    def canary(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> CanaryAnswer:
        """Ask the service's model for one short completion, by its `canary:`; KeyError if unknown."""

    def serves(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> Readiness:
        """Ask `ready`, and where it is ready and has a `canary:`, that too within `deadline`.

        At most 10 s and `deadline`, so that one look of a proof can ask."""


class Gpus(Protocol):
    """The cards of this host: who they are, what they went through, which may be used. Thread-safe, never blocks.

    `address` is a PCI address in any spelling, or a UUID; one that is no card of this host raises UnknownGpu
    (a LookupError) with a line for people. An order is handed to the store before the call returns to the loop,
    so a later `site.note` that is committed proves it to be on the disk.
    """

    def take(self, look: Look) -> None:
        """Hand in a new look; for the probe."""

    def look(self) -> Look | None:
        """Return the newest look, also one in which the driver did not answer; None before the first."""

    def known(self) -> tuple[KnownGpu, ...]:
        """Return every card ever seen here, in PCI order; what is `expected` and not in a look is missing."""

    def usable(self) -> tuple[GpuLook, ...]:
        """Return the GPUs that may be used now, in PCI order: seen within the last 3 minutes, answering, not
        lost, remapping not failed, the driver's recovery action none (or not known), not excluded."""

    def exclude(
        self,
        address: str,
        *,
        reason: str,
        by: str,
        kind: str = "",
        xid: int | None = None,
        incident: int | None = None,
    ) -> KnownGpu:
        """Keep a card out of use; with `kind` or `xid` it is a fault's doing, else a person's. Done twice is done
        once. The answer's `exclusion.state` is `out`, or `final` where only a person brings it back."""

    def give_back(self, address: str, *, by: str) -> KnownGpu:
        """Return a card to use on a person's word."""

    def awaiting_check(self) -> tuple[KnownGpu, ...]:
        """Return the cards that a fault of an earlier boot keeps out, and that a passed boot check brings back."""

    def on_probation(self, address: str, *, by: str = "boot check") -> KnownGpu:
        """Put a card back on probation after it passed the boot check; unchanged unless it awaits one."""

    def history(self, uuid: str) -> tuple[GpuEvent, ...]:
        """Return the newest lines of what happened to a card, oldest first."""


class Site(Protocol):
    """What an action or a probe may use. `child`, `http`, `wait` and `services` block: workers only."""

    @property
    def paths(self) -> Paths:
        """Where the trees lie."""

    @property
    def clock(self) -> Clock:
        """The clocks."""

    @property
    def systemd(self) -> Systemd:
        """PID 1 (async)."""

    @property
    def services(self) -> Services:
        """The services of `services.d`."""

    @property
    def gpus(self) -> Gpus:
        """The cards of this host."""

    @property
    def hostname(self) -> str:
        """The short host name, as told to people."""

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        """Run a program in its own session with a clean environment; at most `limit` bytes are kept."""

    def resident(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Resident:
        """Return a program that stays once it is asked something; started and ended like a child of `child`."""

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
        """Ask an HTTP server; no redirects are followed, at most `limit` bytes are read, never raises."""

    def wait(self, work: Coroutine[Any, Any, T], *, deadline: timedelta) -> T:
        """From a worker thread: run `work` on the loop and return its value; TimeoutError past `deadline`."""

    def evidence_dir(self, incident: int) -> Path:
        """Return the directory for the evidence of one incident; it exists."""

    async def note(self, request: Request, **facts: Any) -> None:
        """Commit `facts` to the request before going on; after a crash they reach `prove` as
        `result.facts["notes"]`. For acts with a state between that must not be forgotten."""

    def tell(self, request: Request, *, to: Sequence[str], text: str = "", urgent: bool = False) -> None:
        """Tell people about the request's incident, in its thread; returns at once."""
