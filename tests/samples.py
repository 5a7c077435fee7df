"""A finding, an incident and a request for tests that need any: one contained ECC error under the service qwen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bandog.domain.model import Finding, Incident, IncidentState, Instant, Request, Severity
from bandog.testing import FakeClock

NOW = FakeClock().now()
E5 = "gpu:0000:e5:00.0"


def finding(*, at: Instant = NOW, **fields: Any) -> Finding:
    """Return an Xid 94, changed by `fields`."""
    base = Finding(kind="nvidia.xid", subject=E5, severity=Severity.ERROR, at=at, facts={"xid": 94})
    return replace(base, **fields)


def incident(number: int = 1, *, at: Instant = NOW, **fields: Any) -> Incident:
    """Return the open incident of that Xid, opened `at`."""
    base = Incident(
        id=number,
        policy="xid-contained-ecc",
        subject=E5,
        kind="nvidia.xid",
        severity=Severity.ERROR,
        state=IncidentState.OPEN,
        opened=at,
        last=at,
        facts={"xid": 94},
        services=("qwen",),
    )
    return replace(base, **fields)


def request(number: str = "1.1", *, at: Instant = NOW, **fields: Any) -> Request:
    """Return a restart of qwen that its policy allows, of the incident before the dot, found and made `at`."""
    base = Request(
        id=number,
        incident=int(number.partition(".")[0]),
        policy="xid-contained-ecc",
        step=0,
        action="restart",
        subject=E5,
        kind="nvidia.xid",
        service="qwen",
        found_at=at,
        made_at=at,
        mode="enforce",
    )
    return replace(base, **fields)
