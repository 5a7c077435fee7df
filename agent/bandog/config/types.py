"""Value types of the configuration language that plugins may use in their options too."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
DURATION_PATTERN = r"^(\d+(\.\d+)?\s*(ms|s|m|h|d|w)\s*)+$"


def parse_duration(value: Any) -> timedelta:
    """Read `10s`, `1h30m`, `7d`; raises ValueError with the way out. A timedelta passes through."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and re.match(DURATION_PATTERN, value.strip()):
        return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(value)))
    raise ValueError(f"{value!r} is no duration; write a number with a unit, like 30s, 10m, 24h or 7d")


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: f"{value.total_seconds():g}s", return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["30s", "10m", "24h"]}),
]
"""A length of time in a configuration file: `30s`, `10m`, `24h`, `7d`, `1h30m`."""
