"""Which incidents are effects of another: companions of a fault, and what a policy inhibits.

Xid 79 makes ten secondary findings; people shall hear of one incident, and one ladder shall act.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from fnmatch import fnmatchcase

from .case import Case
from .model import Finding, IncidentState, Instant

COMPANION_WINDOW = timedelta(seconds=5)
INHIBIT_BEFORE = timedelta(seconds=60)


def near(one: Instant, other: Instant) -> bool:
    """True when two instants of one boot are at most 5 s apart, in either order."""
    return one.boot_id == other.boot_id and abs(one.boottime - other.boottime) <= COMPANION_WINDOW


def cause_of(finding: Finding, acting: bool, cases: Iterable[Case]) -> Case | None:
    """Return the open incident that a companion finding belongs to: its own fault, 5 s away at most."""
    for case in cases:
        incident = case.incident
        if case.companion or incident.state.ended or incident.drill != finding.drill:
            continue
        if acting and not case.solid:
            continue  # a forged line explains nothing
        if near(incident.last, finding.at):
            return case
    return None


def effects_of(finding: Finding, cases: Iterable[Case]) -> list[Case]:
    """Return the incidents of companions that came up to 5 s before the fault they belong to."""
    return [
        case
        for case in cases
        if case.companion
        and not case.incident.state.ended
        and case.incident.drill == finding.drill
        and near(case.incident.opened, finding.at)
    ]


def inhibits(root: Case, effect: Case) -> bool:
    """True when the policy of `root` lists the kind of `effect`, they share a GPU or a service, and
    `effect` opened at most 60 s before `root` or while it is open."""
    if root is effect or not root.policy.inhibits or root.incident.drill != effect.incident.drill:
        return False
    if root.incident.state not in (IncidentState.OPEN, IncidentState.STUCK) or not root.solid:
        return False
    kind = effect.incident.kind
    if not any(fnmatchcase(kind, glob) for glob in root.policy.inhibits):
        return False
    if not _share(root, effect):
        return False
    return root.incident.opened.since(effect.incident.opened) <= INHIBIT_BEFORE


def _share(root: Case, effect: Case) -> bool:
    if root.incident.subject == effect.incident.subject:
        return True
    return not set(root.incident.services).isdisjoint(effect.incident.services)
