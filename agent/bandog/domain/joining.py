"""Which incidents are effects of another: companions of a fault, and what a policy inhibits.

Xid 79 makes ten secondary findings; people shall hear of one incident, and one ladder shall act.
"""

from __future__ import annotations

from datetime import timedelta
from fnmatch import fnmatchcase

from .case import Case, Turn
from .cases import Cases
from .ladder import Ladder
from .model import Finding, IncidentState, Instant

COMPANION_WINDOW = timedelta(seconds=5)
INHIBIT_BEFORE = timedelta(seconds=60)


class Joining:
    """Finds what belongs together, and lets effects join their cause."""

    def __init__(self, cases: Cases, ladder: Ladder) -> None:
        self._cases = cases
        self._ladder = ladder

    def cause_of(self, finding: Finding, acting: bool) -> Case | None:
        """Return the open incident that a companion finding belongs to: 5 s away at most."""
        for case in self._cases.about(finding.subject):
            incident = case.incident
            if case.companion or incident.state.ended or incident.drill != finding.drill:
                continue
            if acting and not case.solid:
                continue  # a forged line explains nothing
            if _near(incident.last, finding.at):
                return case
        return None

    def take_companions(self, cause: Case, finding: Finding, turn: Turn) -> None:
        """Let the incidents of companions that came up to 5 s before their fault join it."""
        if finding.companion or cause.incident.state.ended:
            return
        for case in self._cases.about(finding.subject):
            incident = case.incident
            if not case.companion or incident.state.ended or incident.drill != finding.drill:
                continue
            if case is not cause and _near(incident.opened, finding.at):
                self.join(case, cause, turn)

    def settle(self, case: Case, turn: Turn) -> bool:
        """Apply the `inhibits:` of all policies to a case that is new or has grown.

        Returns True when `case` itself is an effect of another and has stopped.
        """
        if case.incident.state.ended:
            return True
        for root in self._cases:
            if covers(root, case):
                self.join(case, root, turn)
                return True
        if case.policy.inhibits:
            for effect in self._cases:
                if not effect.incident.state.ended and covers(case, effect):
                    self.join(effect, case, turn)
        return False

    def join(self, effect: Case, cause: Case, turn: Turn) -> None:
        """`effect` becomes part of `cause` and stops: what waits is dropped, what runs finishes."""
        told, number = effect.told, cause.incident.id
        effect.change(state=IncidentState.INHIBITED, joined=number, ended=turn.now)
        self._ladder.drop(effect, f"it is part of incident #{number}", turn, all_=True, again=False)
        turn.note(effect, "inhibited", f"part of incident #{number}", tell=told)
        turn.note(cause, "joined", f"{effect.incident.kind} on {effect.incident.subject} is part of it")


def _near(one: Instant, other: Instant) -> bool:
    return one.boot_id == other.boot_id and abs(one.boottime - other.boottime) <= COMPANION_WINDOW


def covers(root: Case, effect: Case) -> bool:
    """True when the policy of `root` lists the kind of `effect`, they share a GPU or a service, and
    `effect` opened at most 60 s before `root` or while it is open."""
    if root is effect or not root.policy.inhibits or root.incident.drill != effect.incident.drill:
        return False
    if root.incident.state not in (IncidentState.OPEN, IncidentState.STUCK) or not root.solid or root.orphan:
        return False
    if not any(fnmatchcase(effect.incident.kind, glob) for glob in root.policy.inhibits):
        return False
    return _share(root, effect) and root.incident.opened.since(effect.incident.opened) <= INHIBIT_BEFORE


def _share(root: Case, effect: Case) -> bool:
    if root.incident.subject == effect.incident.subject:
        return True
    return not set(root.incident.services).isdisjoint(effect.incident.services)
