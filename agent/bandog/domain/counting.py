"""Counts that outlive incidents and restarts: the buckets of `count:` and the limits of steps.

Both are told to the store as `Remembered` values under `engine.` keys. Time is only what
`Instant.since` can prove, so a wrong wall clock neither empties a bucket nor frees a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .changes import Change, Remembered
from .codec import from_json, to_json
from .model import Finding, Instant
from .policy import Rate

BUCKET = "engine.bucket."
LIMIT = "engine.limit."
_MOST_BUCKETS = 4096
_MOST_USES = 1000
_SAVE_EVERY = timedelta(seconds=1)


def weight_of(finding: Finding) -> float:
    """Return what a finding weighs in a bucket: its fact `count`, else 1; never less than 0."""
    count = finding.facts.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int | float) or not math.isfinite(count):
        return 1.0
    return max(float(count), 0.0)


@dataclass(slots=True)
class _Bucket:
    level: float
    at: Instant
    size: float
    per: timedelta
    saved: Instant | None = None
    dirty: bool = False

    def leak(self, now: Instant) -> None:
        passed = max(now.since(self.at), timedelta(0))
        self.level = max(0.0, self.level - self.size * (passed / self.per))
        self.at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How far a `count:` has come for one subject."""

    policy: str
    subject: str
    has: float
    needs: float
    within: timedelta


class Buckets:
    """Leaky buckets of N that leak N/T.

    A bucket is full when its level is above N - 1, so that N findings in quick succession fill it
    although some has leaked meanwhile; it is emptied when it has filled, as in mcelog.
    """

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._buckets: dict[str, _Bucket] = {}
        for key, value in memory.items():
            if key.startswith(BUCKET):
                bucket = _read_bucket(value)
                if bucket is not None:
                    self._buckets[key] = bucket

    def __len__(self) -> int:
        return len(self._buckets)

    def fill(self, key: str, rate: Rate, weight: float, now: Instant, out: list[Change]) -> bool:
        """Put `weight` into the bucket `key`; return True (and empty it) when it is full."""
        name = BUCKET + key
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._room(name, now, out)
        else:
            bucket.leak(now)
        bucket.size, bucket.per = rate.count, max(rate.per, timedelta.resolution)
        bucket.level = min(bucket.level + weight, max(rate.count, 1.0))
        full = bucket.level > rate.count - 1
        if full:
            bucket.level = 0.0
        bucket.dirty = True
        if full or bucket.saved is None or now.since(bucket.saved) >= _SAVE_EVERY:
            self._save(name, bucket, now, out)
        return full

    def flush(self, now: Instant, out: list[Change]) -> None:
        """Save what has changed since it was last saved, and forget what has leaked away."""
        for name in list(self._buckets):
            bucket = self._buckets[name]
            passed = now.since(bucket.at)
            if passed > timedelta(0) and bucket.size * (passed / bucket.per) >= bucket.level:
                del self._buckets[name]
                out.append(Remembered(key=name, value=None))
            elif bucket.dirty:
                self._save(name, bucket, now, out)

    def counts(self, now: Instant) -> tuple[Count, ...]:
        """Return every bucket that holds something: what waits for more."""
        found = []
        for name, bucket in self._buckets.items():
            policy, _, rest = name.removeprefix(BUCKET).partition("|")
            passed = max(now.since(bucket.at), timedelta(0))
            level = bucket.level - bucket.size * (passed / bucket.per)
            if level > 0:
                subject = rest.partition("|")[2]
                found.append(Count(policy=policy, subject=subject, has=level, needs=bucket.size, within=bucket.per))
        return tuple(found)

    def _room(self, name: str, now: Instant, out: list[Change]) -> _Bucket:
        if len(self._buckets) >= _MOST_BUCKETS:
            oldest = next(iter(self._buckets))
            del self._buckets[oldest]
            out.append(Remembered(key=oldest, value=None))
        bucket = _Bucket(level=0.0, at=now, size=1.0, per=timedelta(seconds=1))
        self._buckets[name] = bucket
        return bucket

    def _save(self, name: str, bucket: _Bucket, now: Instant, out: list[Change]) -> None:
        bucket.dirty = False
        bucket.saved = now
        value = {
            "level": bucket.level,
            "at": to_json(bucket.at),
            "size": bucket.size,
            "per": bucket.per.total_seconds(),
        }
        out.append(Remembered(key=name, value=value))


def _read_bucket(value: Any) -> _Bucket | None:
    try:
        per = timedelta(seconds=value["per"])
        at = from_json(Instant, value["at"])
        level, size = float(value["level"]), float(value["size"])
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
    if per <= timedelta(0) or not math.isfinite(level):
        return None
    return _Bucket(level=level, at=at, size=size, per=per, saved=at)


class StepLimits:
    """`limit: N per T` of steps: when each step of a (policy, subject) was begun."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._uses: dict[str, list[tuple[Instant, timedelta]]] = {}
        for key, value in memory.items():
            if key.startswith(LIMIT):
                uses = _read_uses(value)
                if uses:
                    self._uses[key] = uses

    def used(self, key: str, rate: Rate, now: Instant) -> int:
        """Return how many uses are not provably `rate.per` old."""
        return sum(1 for at, _ in self._uses.get(LIMIT + key, ()) if now.since(at) < rate.per)

    def use(self, key: str, rate: Rate, now: Instant, out: list[Change]) -> None:
        """Count one use."""
        uses = self._uses.setdefault(LIMIT + key, [])
        uses.append((now, rate.per))
        del uses[:-_MOST_USES]
        self._save(LIMIT + key, out)

    def give_back(self, key: str, out: list[Change]) -> None:
        """Take the newest use back: the step did nothing."""
        uses = self._uses.get(LIMIT + key)
        if uses:
            uses.pop()
            self._save(LIMIT + key, out)

    def prune(self, now: Instant, out: list[Change]) -> None:
        """Forget the uses that are provably past."""
        for name in list(self._uses):
            uses = self._uses[name]
            kept = [(at, per) for at, per in uses if now.since(at) < per]
            if len(kept) != len(uses):
                self._uses[name] = kept
                self._save(name, out)

    def _save(self, name: str, out: list[Change]) -> None:
        uses = self._uses[name]
        if not uses:
            del self._uses[name]
            out.append(Remembered(key=name, value=None))
            return
        value = [{"at": to_json(at), "per": per.total_seconds()} for at, per in uses]
        out.append(Remembered(key=name, value=value))


def _read_uses(value: Any) -> list[tuple[Instant, timedelta]]:
    try:
        return [(from_json(Instant, use["at"]), timedelta(seconds=use["per"])) for use in value]
    except (TypeError, ValueError, KeyError, OverflowError):
        return []
