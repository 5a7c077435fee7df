"""The proof of a relaunch: it serves, from the wanted GPUs and no other, and its model answers.

Only a look that was taken after the service had become ready counts: while it loads, a program takes its GPUs one
after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bandog import Instant, Look, Proof, ProofState, Readiness, Request, Result, Site, UnitState

from . import _held, _preflight, _proof
from ._owner import Owner
from ._pid1 import Pid1

_OWN_LOOK = timedelta(seconds=10)
_LOOK_EVERY = timedelta(seconds=15)
_CANARY = timedelta(seconds=10)
# Proofs that were given up leave their notes behind; the newest are enough.
_REMEMBERED = 256


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What earlier polls of one request's proof saw: when this start of the unit was first ready, our last look."""

    invocation: str
    ready: Instant
    looked: Instant | None = None


class Proofs:
    """Follows the relaunches that are being proved; `environment` is that of the programs that ask the driver."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._watch = _proof.Watch()
        self._seen: dict[str, _Seen] = {}

    def prove(self, request: Request, result: Result, site: Site, *, settle: timedelta, canary: bool) -> Proof:
        """Look once; PROVED after `settle`, DISPROVED as soon as it holds a card that it should not."""
        goal = _goal(result)
        name = request.service or ""
        said: dict[str, str] = {}

        def ready(unit: UnitState) -> Readiness:
            answer = site.services.ready(name)
            if answer.ready is not True:
                return answer
            if goal["gpus"]:
                held = self._held(request, site, unit, goal)
                if held.right is not True:
                    said["wrong" if held.right is False else "unsettled"] = held.why
                    return Readiness(ready=None, why=held.why)
                said["held"] = f"; {name} {held.why}"
            if not canary or not site.services.get(name).canary:
                return answer
            told = site.services.canary(name, deadline=_CANARY)
            said["canary"] = f"; canary: {told.why}"
            return Readiness(ready=told.ok, why=f"canary: {told.why}")

        proof = self._watch.prove(request, result, site, settle=settle, ready=ready)
        if proof.state is not ProofState.PROVED and "wrong" in said:
            proof = Proof.disproved(f"{name} runs on the wrong GPUs: {said['wrong']}", gpus=goal["gpus"])
        if proof.state is ProofState.PROVED:
            why = proof.why + said.get("held", "") + said.get("canary", "")
            proof = Proof.proved(why, **{**proof.facts, "gpus": goal["gpus"], "without": goal["without"]})
        if proof.state is not ProofState.NOT_YET:
            self._seen.pop(request.id, None)
        return proof

    def _held(self, request: Request, site: Site, unit: UnitState, goal: Mapping[str, Any]) -> _held.Held:
        look = self._look(request, site, unit)
        if look is None:
            return _held.Held(right=None, why="the driver has not told yet which GPUs it holds")
        return _held.judge(site, Owner(site, Pid1(site), unit), unit, look, goal["gpus"], goal["visible"])

    def _look(self, request: Request, site: Site, unit: UnitState) -> Look | None:
        """Return a look that was taken after the service had become ready: the probe's, else one of our own."""
        now, newest = site.clock.now(), site.gpus.look()
        if len(self._seen) > _REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        seen = self._seen.setdefault(request.id, _Seen(invocation=unit.invocation_id, ready=now))
        if seen.invocation != unit.invocation_id:
            seen = self._seen[request.id] = _Seen(invocation=unit.invocation_id, ready=now)
        if newest is not None and (newest.error or newest.at.since(seen.ready) <= timedelta()):
            newest = None
        if newest is not None and now.since(newest.at) <= _LOOK_EVERY:
            return newest
        if seen.looked is not None and now.since(seen.looked) <= _LOOK_EVERY:
            return newest
        seen.looked = now
        try:
            return _preflight.look(site, self._environment, deadline=_OWN_LOOK)
        except _preflight.Silent:
            return newest


def _goal(result: Result) -> Mapping[str, Any]:
    """Return what was to be put in force: of the result, or of the note where the agent died in between."""
    notes = result.facts.get("notes")
    source = result.facts if "gpus" in result.facts else notes if isinstance(notes, Mapping) else {}
    return {
        "gpus": [str(one) for one in source.get("gpus", ())],
        "without": [str(one) for one in source.get("without", ())],
        "visible": str(source.get("visible", "")),
    }
