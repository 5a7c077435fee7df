"""Rows for the store's tests."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import samples
from bandog.domain.model import Incident, Instant, Request, Result, StepState
from bandog.store.rows import AddCharge, AddEvent, SavedRequest
from samples import NOW


def incident(number: int = 1, **fields: Any) -> Incident:
    """An incident with facts of every type."""
    facts = {"xid": 94, "process": "VLLM::Worker_TP", "rows": (1, 2), "glued": False}
    return samples.incident(number, **{"facts": facts, **fields})


def request(number: str = "1.1", **fields: Any) -> Request:
    """A request with options of every type."""
    return samples.request(number, **{"with_": {"signal": "TERM", "list": [1, 2]}, **fields})


def saved(number: str = "1.1", state: StepState = StepState.RUNNING, **fields: Any) -> SavedRequest:
    """A request and how far it got."""
    base = SavedRequest(
        request=request(number),
        state=state,
        started=NOW,
        result=Result.done("restarted", pid=7),
        notes={"stopped": True},
    )
    return dataclasses.replace(base, **fields)


def charge(number: str = "1.1", *, at: Instant = NOW) -> AddCharge:
    """A restart counted against service and host."""
    return AddCharge(keys=("service:qwen:restart", "host"), at=at, request=number)


def event(number: int = 1, what: str = "opened", *, at: Instant = NOW, **data: Any) -> AddEvent:
    """A line of the timeline."""
    return AddEvent(incident=number, at=at, what=what, why="Xid 94", data=data)


def later(**duration: float) -> Instant:
    """An instant of the same boot."""
    return NOW.plus(timedelta(**duration))
