"""Policies as values: which findings they take, and the ladder that follows.

`config` reads them from YAML; `engine` applies them. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from .model import EMPTY, Fact, Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`count` per `per`: a limit, or a leaky bucket that leaks count/per."""

    count: float
    per: timedelta

    def __str__(self) -> str:
        return f"{self.count:g} per {format_duration(self.per)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTest:
    """One test on one fact; an absent fact never passes. `any_of` equals, `minimum`/`maximum` inclusive."""

    any_of: tuple[Fact, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    glob: str | None = None

    def passes(self, value: Fact | None) -> bool:
        """True when `value` is there and satisfies every part that is set."""
        if value is None:
            return False
        if self.any_of and not any(_same(value, wanted) for wanted in self.any_of):
            return False
        if self.glob is not None and not (isinstance(value, str) and fnmatchcase(value, self.glob)):
            return False
        if self.minimum is not None or self.maximum is not None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            if self.minimum is not None and value < self.minimum:
                return False
            if self.maximum is not None and value > self.maximum:
                return False
        return True

    def covers(self, other: FactTest | None) -> bool:
        """True when all that passes `other` surely passes this one; False may mean that it cannot be told."""
        if other is None:
            return False
        return other == self or (bool(other.any_of) and all(self.passes(value) for value in other.any_of))


def _same(value: Fact, wanted: Fact) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which findings a policy takes. `kinds` and `subjects` are globs; `count` a leaky bucket or None."""

    kinds: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    facts: Mapping[str, FactTest] = field(default_factory=lambda: EMPTY)
    severity: Severity | None = None  # the least severity taken
    count: Rate | None = None

    def takes(self, finding: Finding) -> bool:
        """True when `finding` is of this match, counting aside."""
        if not any(fnmatchcase(finding.kind, glob) for glob in self.kinds):
            return False
        if self.subjects and not any(fnmatchcase(finding.subject, glob) for glob in self.subjects):
            return False
        if self.severity is not None and finding.severity < self.severity:
            return False
        return all(test.passes(finding.facts.get(name)) for name, test in self.facts.items())

    def covers(self, other: Match) -> bool:
        """True when this surely takes all that `other` takes; False may mean that it cannot be told."""
        if self.subjects and not (other.subjects and _globs_within(other.subjects, self.subjects)):
            return False
        if self.severity is not None and (other.severity is None or other.severity < self.severity):
            return False
        return _globs_within(other.kinds, self.kinds) and all(
            test.covers(other.facts.get(name)) for name, test in self.facts.items()
        )


def _globs_within(narrow: tuple[str, ...], wide: tuple[str, ...]) -> bool:
    """True when each of `narrow` is one of `wide`, or a plain word that one of them matches."""
    return all(
        one in wide or (not set(one) & set("*?[") and any(fnmatchcase(one, glob) for glob in wide)) for one in narrow
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung. `with_` is the action's own arguments, `$names` not yet expanded."""

    do: str
    with_: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    after: timedelta | None = None
    limit: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy file. `resolve` is proved, quiet or cleared; `mode` observe, enforce or a set of actions.

    `file` and `line` say where it stands, `layer` is shipped or site.
    """

    name: str
    match: Match
    description: str = ""
    severity: Severity | None = None
    quiet: timedelta = timedelta(minutes=30)
    resolve: str = "proved"
    notify: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    inhibits: tuple[str, ...] = ()
    mode: str | tuple[str, ...] | None = None
    file: str = ""
    line: int = 0
    layer: str = "site"


def first_match(policies: Iterable[Policy], finding: Finding) -> Policy | None:
    """Return the first policy, in reading order, that takes `finding`; counting is the engine's."""
    for policy in policies:
        if policy.match.takes(finding):
            return policy
    return None


def allows(mode: str | tuple[str, ...] | None, action: str) -> bool:
    """True when one `mode` value lets `action` act; None (not set) lets it."""
    if mode is None or mode == "enforce":
        return True
    if isinstance(mode, tuple):
        return action in mode
    return False


def format_duration(value: timedelta) -> str:
    """Return a duration as people write it in policies: `10m`, `1h30m`, `45s`."""
    seconds = int(value.total_seconds())
    if seconds <= 0:
        return f"{value.total_seconds():g}s"
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts)
