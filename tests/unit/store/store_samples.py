"""Rows for the store's tests."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from bandog.domain.model import Incident, IncidentState, Instant, Request, Result, Severity, StepState
from bandog.store.rows import AddCharge, AddEvent, SavedRequest
from bandog.testing import FakeClock

NOW = FakeClock().now()


def incident(number: int = 1, *, at: Instant = NOW, **fields: Any) -> Incident:
    """An open incident of a contained ECC error."""
    base = Incident(
        id=number,
        policy="xid-contained-ecc",
        subject="gpu:0000:e5:00.0",
        kind="nvidia.xid",
        severity=Severity.ERROR,
        state=IncidentState.OPEN,
        opened=at,
        last=at,
        facts={"xid": 94, "process": "VLLM::Worker_TP", "rows": (1, 2), "glued": False},
        services=("qwen",),
    )
    return dataclasses.replace(base, **fields)


def request(number: str = "1.1", *, at: Instant = NOW, **fields: Any) -> Request:
    """A restart of the service qwen."""
    base = Request(
        id=number,
        incident=int(number.partition(".")[0]),
        policy="xid-contained-ecc",
        step=0,
        action="restart",
        subject="gpu:0000:e5:00.0",
        kind="nvidia.xid",
        service="qwen",
        found_at=at,
        made_at=at,
        mode="enforce",
        with_={"signal": "TERM", "list": [1, 2]},
    )
    return dataclasses.replace(base, **fields)


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
