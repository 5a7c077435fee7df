"""Whether what a plugin states is what it says to be: asked at the doors, before the engine takes it.

The engine never raises on what detectors state, as long as every field is of its type. A plugin that
states anything else, or without end, is broken and is treated as one that raised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from ..domain.model import Finding, Instant, Severity, Unknown

MOST_FINDINGS = 1000
"""Of one record; as many as the engine keeps incidents open (`domain/intake.py`)."""
MOST_ANSWERS = 10_000
"""Of one poll: when a storage server comes back, thousands of tasks move again at once."""
MOST_TEXT = 64 * 1024
"""Characters in the facts of one finding; a kernel record has at most about 1,000."""
_SHAPE: Mapping[str, type] = {
    "kind": str,
    "subject": str,
    "severity": Severity,
    "at": Instant,
    "detector": str,
    "raised": bool,
    "live": bool,
    "drill": bool,
    "services": tuple,
    "burst": str,
    "window": timedelta,
    "companion": bool,
    "aspect": str,
}


class Unsound(Exception):
    """A plugin stated what is no finding; the text says in what."""


def findings_of(answer: Iterable[object]) -> list[Finding]:
    """Return what a log detector stated; raises Unsound, and whatever its generator raises."""
    return [_finding(one) for one in _bounded(answer, MOST_FINDINGS)]


def answers_of(answer: Iterable[object]) -> list[Finding | Unknown]:
    """Return what a probe stated; raises like `findings_of`."""
    return [_unknown(one) if isinstance(one, Unknown) else _finding(one) for one in _bounded(answer, MOST_ANSWERS)]


def _bounded(answer: Iterable[object], most: int) -> list[object]:
    stated = list(islice(answer, most + 1))
    if len(stated) > most:
        raise Unsound(f"more than {most} findings at once")
    return stated


def _unknown(one: Unknown) -> Unknown:
    if not (isinstance(one.kind, str) and isinstance(one.subject, str)):
        raise Unsound("an Unknown needs a kind and a subject")
    return one


def _finding(one: object) -> Finding:
    if not isinstance(one, Finding):
        raise Unsound(f"{type(one).__name__} is no Finding")
    for name, kind in _SHAPE.items():
        value = getattr(one, name)
        if not isinstance(value, kind):
            raise Unsound(f"Finding.{name} is {type(value).__name__}, not {kind.__name__}")
    if not (one.record is None or isinstance(one.record, str)):
        raise Unsound("Finding.record is no identity of a record")
    if not all(isinstance(name, str) for name in one.services):
        raise Unsound("Finding.services holds what is no name")
    size = sum(_size(name, value) for name, value in one.facts.items())
    if size > MOST_TEXT:
        raise Unsound(f"{one.kind}: {size} characters of facts are more than {MOST_TEXT}")
    return one


def _size(name: object, value: Any) -> int:
    """Return how much text a fact holds; raises Unsound when it is no `Fact`."""
    parts = value if isinstance(value, tuple) else (value,)
    if not isinstance(name, str) or not all(isinstance(part, str | int | float) for part in parts):
        raise Unsound(f"fact {name!r:.80} is {type(value).__name__}")
    if any(isinstance(part, float) and not math.isfinite(part) for part in parts):
        raise Unsound(f"fact {name!r:.80} is no finite number")
    return len(name) + sum(len(part) if isinstance(part, str) else 1 for part in parts)
