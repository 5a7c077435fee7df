"""Finding the policy of a finding fast: an index by kind, then by the fact that tells most apart.

The order of reading decides (the first policy that matches takes the finding); the index only
leaves out policies that cannot match, so it never changes which one that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from .model import Fact, Finding
from .policy import Policy

_CACHED_KINDS = 512  # kinds come from detectors, some dozens; the bound is for a broken one


class PolicyIndex:
    """All policies in reading order, and quick ways to the few that can take a finding."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(policies)
        self._by_name = {policy.name: policy for policy in self.policies}
        self._by_kind: dict[str, _Group] = {}

    def named(self, name: str) -> Policy | None:
        """Return the policy of that name."""
        return self._by_name.get(name)

    def find(self, finding: Finding) -> Policy | None:
        """Return the first policy in reading order that takes `finding`; counting is the engine's."""
        group = self._by_kind.get(finding.kind)
        if group is None:
            group = self._group(finding.kind)
        for policy in group.candidates(finding):
            if policy.match.takes(finding):
                return policy
        return None

    def _group(self, kind: str) -> _Group:
        if len(self._by_kind) >= _CACHED_KINDS:
            self._by_kind.clear()
        group = _Group([p for p in self.policies if any(fnmatchcase(kind, glob) for glob in p.match.kinds)])
        self._by_kind[kind] = group
        return group


class _Group:
    """The policies of one kind, split by the values of their most used fact."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._all = tuple(policies)
        uses = Counter(name for p in policies for name, test in p.match.facts.items() if test.any_of)
        self._fact = uses.most_common(1)[0][0] if uses else None
        self._by_value: dict[Fact, tuple[Policy, ...]] = {}
        self._others: tuple[Policy, ...] = self._all
        if self._fact is not None:
            self._split(self._fact)

    def _split(self, fact: str) -> None:
        tests = [(policy, policy.match.facts.get(fact)) for policy in self._all]
        values = {value for _, test in tests if test is not None for value in test.any_of}
        self._others = tuple(p for p, test in tests if test is None or not test.any_of)
        for value in values:
            self._by_value[value] = tuple(
                p for p, test in tests if test is None or not test.any_of or value in test.any_of
            )

    def candidates(self, finding: Finding) -> tuple[Policy, ...]:
        if self._fact is None:
            return self._all
        try:
            return self._by_value.get(finding.facts.get(self._fact, ""), self._others)
        except TypeError:  # a detector stated something unhashable
            return self._all
