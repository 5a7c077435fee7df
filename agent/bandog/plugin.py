"""The base classes that plugins derive from: log detectors, probes and actions.

They stand apart from `hookspecs` because a plugin author subclasses these and merely implements
those. Plugins take them from `bandog`, never from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from .domain.model import Facts, Finding, Instant, Proof, Record, Request, Result, Unknown

if TYPE_CHECKING:
    from .host.site import Host, Site


class Options(BaseModel):
    """Base of a plugin's options: unknown keys are errors, values do not change.

    A plugin's `Options` are read from `plugins: {<name>: {…}}` of the main file; an action's `With`
    from `with:` of a step. Durations are declared as `bandog.Duration`, so that `10s` works.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class LogDetector(ABC):
    """Turns records into findings, on the loop: no I/O and no waiting in any method.

    `needles` are literals of which one stands in every record that it wants; while `open` is true
    it gets every record, needle or not. `emits` lists its kinds and the facts of each, so that
    `bandog check` knows them. `sources` names the sources that it listens to.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BaseModel]] = Options
    emits: ClassVar[Mapping[str, Facts]] = {}
    needles: ClassVar[tuple[bytes, ...]] = ()
    open: bool = False

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    def unsupported(self, host: Host) -> str | None:
        """Return the reason why this host cannot have this detector, or None."""
        return None

    @abstractmethod
    def feed(self, record: Record) -> Iterable[Finding]:
        """Called for each record that holds a needle, and for all of them while `open`."""

    def flush(self, now: Instant) -> Iterable[Finding]:
        """Called each second while `open` and at the end of input: close what has ended."""
        return ()

    def meaning(self, finding: Finding) -> str:
        """Return what one of this detector's findings means, in words for people, or "" to add nothing."""
        return ""


class Probe(ABC):
    """Looks at the host every `every`, in a worker that is given up after `deadline`.

    `poll` returns the whole truth now: what it does not name has cleared; what it names Unknown
    keeps its state. It may block; it may use everything of `site` except `await`.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BaseModel]] = Options
    emits: ClassVar[Mapping[str, Facts]] = {}
    every: timedelta = timedelta(seconds=10)
    deadline: timedelta = timedelta(seconds=5)

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    def unsupported(self, host: Host) -> str | None:
        """Return the reason why this host cannot have this probe, or None."""
        return None

    @abstractmethod
    def poll(self, site: Site) -> Iterable[Finding | Unknown]:
        """Return every finding that is raised now, and what could not be told."""


class Action(ABC):
    """Changes the world for one request, and proves that it helped.

    `run` and `prove` may be `async def` (on the loop, awaiting only `site.systemd` and
    `site.clock`) or plain (in a worker thread). A plain one that overruns its deadline is given up
    and its late result dropped. `result` reaches `prove` from the store, so proof goes on after a
    restart of the agent or the host.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BaseModel]] = Options
    With: ClassVar[type[BaseModel]] = Options
    disruptive: ClassVar[bool] = True
    per_service: ClassVar[bool] = False
    """True: one request for each service located, and SKIPPED where none is known."""
    proves: ClassVar[bool] = True
    """False: the step is PROVED as soon as `run` is DONE (notify, evidence)."""
    run_deadline: timedelta = timedelta(seconds=120)
    proof_deadline: timedelta = timedelta(minutes=10)
    proof_every: timedelta = timedelta(seconds=2)

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    def unsupported(self, host: Host) -> str | None:
        """Return the reason why this host cannot have this action, or None."""
        return None

    @abstractmethod
    def run(self, request: Request, site: Site) -> Any:
        """Act once and return a `Result` (or an awaitable of one). Never called twice for a request
        whose act may have happened."""

    def prove(self, request: Request, result: Result, site: Site) -> Any:
        """Return a `Proof` (or an awaitable of one); called every `proof_every` until it decides."""
        return Proof.proved("the action needs no proof")

    def proof_time(self, request: Request, site: Site) -> timedelta:
        """Return how long `prove` may say NOT_YET before the step has failed."""
        return self.proof_deadline
