"""Finding fast which policies an earlier one leaves nothing to.

Asking each pair would take ten seconds for 2,000 policies, at every start. So each policy stands under keys of
which every policy that it covers names one; only those are asked, and the answer is that of `Match.covers`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from .policy import Match, Policy

_ANYWHERE = ()  # the key of what no other key tells apart
_GLOB = frozenset("*?[")


def covered(policies: Sequence[Policy]) -> Iterator[tuple[Policy, Policy]]:
    """Yield each policy that an earlier one surely leaves nothing to, with the first such."""
    standing: dict[Hashable, list[int]] = defaultdict(list)
    for number, policy in enumerate(policies):
        earlier = sorted({one for key in _named(policy.match) for one in standing.get(key, ())})
        first = next((policies[one] for one in earlier if policies[one].match.covers(policy.match)), None)
        if first is not None:
            yield policy, first
            continue  # what it covers, `first` covers too
        for key in _keys(policy.match):
            standing[key].append(number)


def _keys(match: Match) -> list[Hashable]:
    """Return keys of which whatever `match` covers names at least one: of one test, or of its subjects or kinds."""
    for name, test in match.facts.items():
        if test.any_of:
            return [("value", name, value) for value in test.any_of]
    for name, test in match.facts.items():
        return [("test", name, test), ("fact", name)]
    for part, words in (("subject", match.subjects), ("kind", match.kinds)):
        if words and not any(_GLOB & set(word) for word in words):
            return [(part, word) for word in words]
    return [_ANYWHERE]


def _named(match: Match) -> Iterator[Hashable]:
    """Yield every key that a match covering `match` may stand under."""
    yield _ANYWHERE
    yield from (("kind", word) for word in match.kinds[:1])
    yield from (("subject", word) for word in match.subjects[:1])
    for name, test in match.facts.items():
        yield "test", name, test
        if test.any_of:
            yield "fact", name
            yield "value", name, test.any_of[0]
