"""What can be written to the store, one type per kind of row; a commit takes any number of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..domain.gpus import GpuEvent, KnownGpu
from ..domain.model import EMPTY, Incident, Instant, Request, Result, StepState


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveIncident:
    """The incident as it stands now."""

    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class AddEvent:
    """One line of an incident's timeline (incident 0: the agent's own log of notable events)."""

    incident: int
    at: Instant
    what: str
    why: str = ""
    data: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRequest:
    """A request and how far it got. `started` is committed before the act, `result` after it."""

    request: Request
    state: StepState
    why: str = ""
    started: Instant | None = None
    result: Result | None = None
    proving: Instant | None = None
    notes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCharge:
    """A disruptive act counted against `keys` (`service:x:restart`, `host`, …); `shadow` in observe mode."""

    keys: tuple[str, ...]
    at: Instant
    request: str
    shadow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCursor:
    """How far a source was read: `position` is the source's own (sequence number, journal cursor)."""

    source: str
    boot_id: str
    position: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remember:
    """A small JSON value under a key; None forgets it."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveHold:
    """A pause: `target` is `*`, a service or a policy. `until` None holds until released."""

    target: str
    by: str
    reason: str
    made: Instant
    until: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropHold:
    """The pause of `target` ends."""

    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMessage:
    """A message not yet delivered; `id` is the sender's."""

    id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropMessage:
    """A message was delivered or given up."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGpu:
    """A card as the inventory knows it now."""

    card: KnownGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGpuEvent:
    """One line of a card's history; written again when it counts more (same card, time, `what` and Xid)."""

    event: GpuEvent


Row: TypeAlias = (
    SaveIncident
    | AddEvent
    | SavedRequest
    | AddCharge
    | SaveCursor
    | Remember
    | SaveHold
    | DropHold
    | SaveMessage
    | DropMessage
    | SaveGpu
    | AddGpuEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Everything that a start reads back. Ended incidents are left out, except the newest 200.

    `gpu_events` are each card's newest, the oldest first.
    """

    incidents: tuple[Incident, ...] = ()
    requests: tuple[SavedRequest, ...] = ()
    charges: tuple[AddCharge, ...] = ()
    cursors: tuple[SaveCursor, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    holds: tuple[SaveHold, ...] = ()
    messages: tuple[SaveMessage, ...] = ()
    gpus: tuple[KnownGpu, ...] = ()
    gpu_events: tuple[GpuEvent, ...] = ()
