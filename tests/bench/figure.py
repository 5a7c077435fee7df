"""What is measured and what is asked: the budgets of DESIGN.md section 12."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run: the figure itself, and what helps to judge it."""

    value: float
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `measure(small)` takes it, on a reduced scale for the smoke test."""

    name: str
    what: str
    unit: str
    must: float
    goal: float
    measure: Callable[[bool], Measured]
    _: KW_ONLY
    more_is_better: bool = False

    def keeps(self, value: float, slack: float = 1) -> bool:
        """Return whether `value` keeps the must, made `slack` times as easy."""
        return value >= self.must / slack if self.more_is_better else value <= self.must * slack

    def reaches_goal(self, value: float) -> bool:
        """Return whether `value` reaches the goal."""
        return value >= self.goal if self.more_is_better else value <= self.goal


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0 … 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
