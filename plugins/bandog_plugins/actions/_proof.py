"""The proof of a restart: activated since the act, ready, and both for a while; decided from the world.

The result may be of an agent that died in the middle of the act. Then only the unit's own times
tell what happened, and the one thing that is ever done here is the start that a recorded stop owes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from bandog import Instant, Proof, ProofState, Readiness, Request, Result, Site, SystemdError, UnitState, from_json

from . import _stuck, _unit
from ._pid1 import Pid1

# How long a unit may be seen neither moved nor moving before the act counts as without effect;
# systemd queues a job within milliseconds, and a boot has started its units by then.
_PATIENCE = timedelta(seconds=15)
_BOOT_PATIENCE = timedelta(minutes=5)
_FINISH_WAIT = timedelta(seconds=5)
# Proofs that were given up leave their notes behind; the newest are enough.
_REMEMBERED = 256

Ask = Callable[[UnitState], Readiness]
"""Asks whether the service of a unit, as it is now, serves as it should."""


def time_to_ready(request: Request, site: Site, *, wanted: timedelta | None, otherwise: timedelta) -> timedelta:
    """Return `wanted`, else how long the request's service may take, else (there is none any more) `otherwise`."""
    if wanted is not None:
        return wanted
    try:
        timeout: timedelta = site.services.get(request.service or "").start.timeout
    except KeyError:
        return otherwise
    return timeout


@dataclass(slots=True)
class _Seen:
    """What earlier polls of one request's proof saw."""

    first: Instant
    ready_since: Instant | None = None
    invocation: str = ""
    blocked: _stuck.Sample = field(default_factory=dict)
    blocked_at: Instant | None = None
    finished: bool = False


class Watch:
    """Watches the units of the requests that are being proved."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def prove(
        self, request: Request, result: Result, site: Site, *, settle: timedelta, ready: Ask | None = None
    ) -> Proof:
        """Look once; PROVED after `settle` of readiness, DISPROVED as soon as waiting is in vain.

        `ready` asks in place of the service's own readiness, once the unit runs since the act.
        """
        if len(self._seen) > _REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        seen = self._seen.setdefault(request.id, _Seen(first=site.clock.now()))
        proof = self._look(
            request, result, site, seen, settle, ready or (lambda _: site.services.ready(request.service or ""))
        )
        if proof.state is not ProofState.NOT_YET:
            self._seen.pop(request.id, None)
        return proof

    def _look(self, request: Request, result: Result, site: Site, seen: _Seen, settle: timedelta, ready: Ask) -> Proof:
        name = request.service or ""
        pid1 = Pid1(site)
        try:
            unit = pid1.unit(site.services.get(name).unit)
        except KeyError:
            return Proof.disproved(f"there is no service {name} any more")
        except SystemdError as error:
            return Proof.not_yet(f"systemd did not answer: {error}")
        if unit.load_state in ("not-found", "masked"):
            return Proof.disproved(f"{unit.name} is {unit.load_state}")
        if unit.active_state == "failed" and unit.job is None:
            return Proof.disproved(f"{unit.name} failed: {unit.result}", result=unit.result)
        if _owes_start(unit, request, result, site) and not seen.finished:
            seen.finished = True
            return _finish(pid1, unit)
        if unit.active_state == "inactive":
            return self._down(unit, site, seen)
        if unit.active_state != "active":
            return _moving(unit, site, seen)
        if not _fresh(unit, request, result, site):
            return self._untouched(unit, site, seen)
        return self._serving(unit, name, site, seen, settle, ready)

    def _down(self, unit: UnitState, site: Site, seen: _Seen) -> Proof:
        if unit.job is not None or not _waited(site, seen):
            return Proof.not_yet(f"{unit.name} is down")
        return Proof.disproved(f"{unit.name} is down and nothing is starting it")

    def _untouched(self, unit: UnitState, site: Site, seen: _Seen) -> Proof:
        if unit.job is not None or not _waited(site, seen):
            return Proof.not_yet(f"{unit.name} has not been restarted yet")
        return Proof.disproved(f"{unit.name} was never restarted: it runs as it did before")

    def _serving(self, unit: UnitState, name: str, site: Site, seen: _Seen, settle: timedelta, ready: Ask) -> Proof:
        if unit.invocation_id != seen.invocation:
            seen.invocation, seen.ready_since = unit.invocation_id, None
        answer = ready(unit)
        if answer.ready is False:
            seen.ready_since = None
        if not answer.ready:
            return Proof.not_yet(f"{name} is not ready: {answer.why}")
        now = site.clock.now()
        if seen.ready_since is None:
            seen.ready_since = now
        steady = now.since(seen.ready_since)
        if steady < settle:
            return Proof.not_yet(f"{name} is ready; it must stay so for {settle.total_seconds():g} s")
        return Proof.proved(
            f"{name} is ready and has stayed so for {steady.total_seconds():.0f} s",
            invocation=unit.invocation_id,
        )


def _waited(site: Site, seen: _Seen) -> bool:
    now = site.clock.now()
    return now.since(seen.first) >= _PATIENCE and now.boottime >= _BOOT_PATIENCE


def _moving(unit: UnitState, site: Site, seen: _Seen) -> Proof:
    """A unit on its way; one that cannot stop because a task is stuck will not arrive."""
    if unit.active_state == "deactivating":
        now, blocked = site.clock.now(), _stuck.sample(site, unit.control_group)
        if seen.blocked_at is None or now.since(seen.blocked_at) >= _stuck.SAMPLE_GAP:
            stuck = _stuck.unmoved(site, seen.blocked, blocked)
            seen.blocked, seen.blocked_at = blocked, now
            if stuck:
                return Proof.disproved(
                    f"{_stuck.words(stuck)}; {unit.name} cannot stop",
                    unkillable=True,
                    pid=stuck[0].pid,
                    comm=stuck[0].comm,
                    wchan=stuck[0].wchan,
                )
    return Proof.not_yet(f"{unit.name} is {unit.active_state}")


def _fresh(unit: UnitState, request: Request, result: Result, site: Site) -> bool:
    """True when the unit runs since the act (since the finding, where systemd itself restarted it)."""
    if result.facts.get("by_manager"):
        return _unit.activated_since(unit, request.found_at, site)
    if result.facts.get("interrupted"):
        return _unit.activated_since(unit, _started(request, result), site)
    return bool(unit.invocation_id != result.facts.get("before", ""))


def _started(request: Request, result: Result) -> Instant:
    try:
        return from_json(Instant, result.facts["started"])
    except (KeyError, TypeError, ValueError):
        return request.made_at


def _owes_start(unit: UnitState, request: Request, result: Result, site: Site) -> bool:
    """True when an interrupted act of ours has stopped the unit and not started it."""
    notes = result.facts.get("notes")
    phase = notes.get("phase") if isinstance(notes, Mapping) else None
    return (
        bool(result.facts.get("interrupted"))
        and phase in ("stopping", "stopped", "starting")
        and unit.active_state == "inactive"
        and unit.job is None
        and not _unit.activated_since(unit, _started(request, result), site)
    )


def _finish(pid1: Pid1, unit: UnitState) -> Proof:
    """Start what we had stopped; where it leads the next poll sees."""
    facts: dict[str, Any] = {"finished": True}
    try:
        outcome = pid1.start(unit.name, deadline=_FINISH_WAIT)
    except SystemdError as error:
        return Proof.not_yet(f"the start that was still owed was asked for: {error}", **facts)
    return Proof.not_yet(f"the start that was still owed was asked for: {outcome.result}", **facts)
