"""The values that travel through bandog: what was read, what it means, what is done about it.

Every module speaks in these types, so they import nothing of ours, do no I/O and own no clock.
All of them are frozen and go to JSON and back by `codec`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self, TypeAlias

Fact: TypeAlias = str | int | float | bool | tuple[str, ...] | tuple[int, ...]
Facts: TypeAlias = Mapping[str, type]
"""What a detector may state: fact name → Python type (`str`, `int`, `float`, `bool`, `tuple`)."""

EMPTY: Mapping[str, Any] = types.MappingProxyType({})


class Severity(enum.Enum):
    """How bad a finding is; ordered, `INFO < WARNING < ERROR < CRITICAL`."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info to 3 for critical."""
        return _SEVERITY_ORDER[self.value]

    def __lt__(self, other: Severity) -> bool:
        return self.rank < other.rank

    def __le__(self, other: Severity) -> bool:
        return self.rank <= other.rank


_SEVERITY_ORDER = {"info": 0, "warning": 1, "error": 2, "critical": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One moment, told by every clock that a host has.

    `boottime` is CLOCK_BOOTTIME since the start of boot `boot_id`; `utc` is the wall clock;
    `synced` says whether the kernel held that wall clock to be synchronised.
    """

    boot_id: str
    boottime: timedelta
    utc: datetime
    synced: bool = False

    def since(self, earlier: Instant) -> timedelta:
        """Return the time that has provably passed since `earlier`; never more than can be proved.

        Within one boot this is the difference of the boot clocks. Across boots it is the wall
        clock's difference if that was synchronised at both ends, else the uptime of this boot.
        """
        if self.boot_id == earlier.boot_id:
            return self.boottime - earlier.boottime
        if self.synced and earlier.synced:
            return max(self.utc - earlier.utc, self.boottime)
        return self.boottime

    def plus(self, duration: timedelta) -> Instant:
        """Return the instant `duration` later on the same boot."""
        return dataclasses.replace(self, boottime=self.boottime + duration, utc=self.utc + duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line from a source, unescaped, with the time that it carries.

    `kernel` is true only for facility 0 (Linux `Documentation/ABI/testing/dev-kmsg`). `live` says
    that the source vouches for it: of this boot and past the stored cursor; text files never are.
    `usec` is the kernel's own time stamp in microseconds since boot.
    """

    text: str
    at: Instant
    source: str
    kernel: bool = True
    live: bool = False
    level: int | None = None
    seq: int | None = None
    usec: int | None = None
    line: int | None = None
    unit: str | None = None
    fields: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    @property
    def identity(self) -> str:
        """Boot, microsecond and hash: the same line has the same identity from kmsg and the journal."""
        digest = hashlib.blake2s(self.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        stamp = "-" if self.usec is None else str(self.usec)
        return f"{self.at.boot_id}:{stamp}:{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact that a detector states about a subject; never advice.

    `facts` holds only what is known: absent facts are left out, never None or "" (both are dropped
    here). `raised` is False when the fault has gone. `record` is the identity of the record it came
    from and `line` its first physical line, where there was one. `live` is False for anything that
    may be told but never acted on. `services` is filled in by `services/locate`.

    `burst` tells apart what must not be merged: findings of one (kind, subject, burst) within
    `window` of the first are one event. A `companion` is an effect: it joins an incident of its
    subject that is at most 5 s away, in either order, and opens none beside it.

    Where a kind tells of several states of one subject, `aspect` names which: a cleared finding
    clears only what was raised under its own (kind, subject, aspect).
    """

    kind: str
    subject: str
    severity: Severity
    at: Instant
    detector: str = ""
    raised: bool = True
    facts: Mapping[str, Fact] = field(default_factory=lambda: EMPTY)
    record: str | None = None
    line: int | None = None
    live: bool = False
    drill: bool = False
    services: tuple[str, ...] = ()
    burst: str = ""
    window: timedelta = timedelta(seconds=5)
    companion: bool = False
    aspect: str = ""

    def __post_init__(self) -> None:
        clean = {name: value for name, value in self.facts.items() if value is not None and value != ""}
        object.__setattr__(self, "facts", types.MappingProxyType(clean))

    @classmethod
    def of(
        cls,
        record: Record,
        *,
        kind: str,
        subject: str,
        severity: Severity,
        facts: Mapping[str, Fact | None] = EMPTY,
        raised: bool = True,
        burst: str = "",
        window: timedelta = timedelta(seconds=5),
        companion: bool = False,
        aspect: str = "",
    ) -> Self:
        """Build the finding that `record` gives rise to; None and "" among `facts` are left out."""
        return cls(
            kind=kind,
            subject=subject,
            severity=severity,
            at=record.at,
            raised=raised,
            facts=typing.cast("Mapping[str, Fact]", facts),
            record=record.identity,
            line=record.line,
            live=record.live,
            burst=burst,
            window=window,
            companion=companion,
            aspect=aspect,
        )

    def key(self) -> tuple[str, str]:
        """(kind, subject and aspect): what a later cleared finding answers to."""
        return (self.kind, f"{self.subject}#{self.aspect}" if self.aspect else self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A probe could not tell: whatever it last said of (kind, subject) stays as it is.

    `subject` "*" means every subject of that kind.
    """

    kind: str
    subject: str = "*"
    why: str = ""


class IncidentState(enum.Enum):
    """Where an incident stands; the last three are ends."""

    OPEN = "open"
    STUCK = "stuck"  # the ladder is used up; a person has been paged
    UNRESOLVED = "unresolved"  # quiet, but nothing was ever proved
    RESOLVED = "resolved"
    INHIBITED = "inhibited"  # joined the incident in `joined`

    @property
    def ended(self) -> bool:
        """True once no step can begin any more."""
        return self in (IncidentState.RESOLVED, IncidentState.INHIBITED)


class StepState(enum.Enum):
    """How a step stands or ended (DESIGN section 9)."""

    WAITING = "waiting"  # `after:` not reached, a gate holds it, or its commit is under way
    RUNNING = "running"
    PROVING = "proving"
    PROVED = "proved"
    FAILED = "failed"
    SKIPPED = "skipped"
    EXHAUSTED = "exhausted"
    WOULD = "would"

    @property
    def ended(self) -> bool:
        """True for the five ends of a step."""
        return self not in (StepState.WAITING, StepState.RUNNING, StepState.PROVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One open problem: one (policy, subject).

    `step` is the index of the ladder's current step, -1 before the first; `step_state` how that
    step stands. `opened` and `last` are the first and the last finding's time. `why` is one
    sentence for people on the latest change.
    """

    id: int
    policy: str
    subject: str
    kind: str
    severity: Severity
    state: IncidentState
    opened: Instant
    last: Instant
    findings: int = 1
    raised: bool = True
    drill: bool = False
    step: int = -1
    step_state: StepState = StepState.WAITING
    proved_step: int = -1
    facts: Mapping[str, Fact] = field(default_factory=lambda: EMPTY)
    services: tuple[str, ...] = ()
    joined: int | None = None
    acked_by: str | None = None
    reminded: Instant | None = None
    ended: Instant | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One action asked for by one step, for one service or for the incident as a whole.

    `id` is unique for ever (`<incident>.<n>`). `with_` are the step's arguments after `$name`
    expansion. `facts` are those of the newest finding; `found_at` is its time.
    """

    id: str
    incident: int
    policy: str
    step: int
    action: str
    subject: str
    kind: str
    service: str | None = None
    with_: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    facts: Mapping[str, Fact] = field(default_factory=lambda: EMPTY)
    found_at: Instant
    made_at: Instant
    live: bool = True
    drill: bool = False
    disruptive: bool = True
    mode: str = "observe"  # what policy and service allow: observe | enforce


class ResultState(enum.Enum):
    """What came of running an action."""

    DONE = "done"
    RETRY = "retry"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an action's `run` returns. `why` is one sentence for people; `facts` reach `prove`."""

    state: ResultState
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    @classmethod
    def done(cls, why: str = "", **facts: Any) -> Self:
        """The world was changed as asked."""
        return cls(state=ResultState.DONE, why=why, facts=facts)

    @classmethod
    def retry(cls, why: str, **facts: Any) -> Self:
        """Nothing was changed; the same request may be tried again later."""
        return cls(state=ResultState.RETRY, why=why, facts=facts)

    @classmethod
    def failed(cls, why: str, **facts: Any) -> Self:
        """The action did not work; the ladder climbs."""
        return cls(state=ResultState.FAILED, why=why, facts=facts)

    @classmethod
    def skipped(cls, why: str, **facts: Any) -> Self:
        """The action does not apply here; the ladder climbs."""
        return cls(state=ResultState.SKIPPED, why=why, facts=facts)


class ProofState(enum.Enum):
    """Whether an action helped."""

    PROVED = "proved"
    NOT_YET = "not-yet"
    DISPROVED = "disproved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What an action's `prove` returns; polled until PROVED, DISPROVED or the deadline."""

    state: ProofState
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    @classmethod
    def proved(cls, why: str = "", **facts: Any) -> Self:
        """It helped, and this is how we know."""
        return cls(state=ProofState.PROVED, why=why, facts=facts)

    @classmethod
    def not_yet(cls, why: str = "", **facts: Any) -> Self:
        """Cannot say yet; ask again."""
        return cls(state=ProofState.NOT_YET, why=why, facts=facts)

    @classmethod
    def disproved(cls, why: str, **facts: Any) -> Self:
        """It did not help."""
        return cls(state=ProofState.DISPROVED, why=why, facts=facts)
