"""All cases in memory: by number, by what makes them one incident, and by subject."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case
from .model import IncidentState

_HOLDING = (IncidentState.OPEN, IncidentState.STUCK)


class Cases:
    """The engine's incidents. Iterating is safe while cases come and go."""

    def __init__(self) -> None:
        self._all: dict[int, Case] = {}
        self._current: dict[tuple[str, str, bool], Case] = {}
        self._subjects: dict[str, dict[int, Case]] = {}

    def __iter__(self) -> Iterator[Case]:
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def current(self) -> int:
        """How many incidents are open or held by the one that they joined."""
        return len(self._current)

    def keep(self, case: Case) -> None:
        """Take a case in; it is the current one of its policy and subject."""
        self._all[case.incident.id] = case
        self._current[case.key] = case
        self._subjects.setdefault(case.incident.subject, {})[case.incident.id] = case

    def numbered(self, number: int | None) -> Case | None:
        """Return the case of an incident number."""
        return self._all.get(number) if number is not None else None

    def about(self, subject: str) -> list[Case]:
        """Return the cases of a subject, those that ended a short while ago included."""
        return list(self._subjects.get(subject, {}).values())

    def current_of(self, policy: str, subject: str, drill: bool) -> Case | None:
        """Return the incident that a finding of this policy and subject belongs to."""
        case = self._current.get((policy, subject, drill))
        if case is not None and not self.holds(case):
            self.close(case)
            return None
        return case

    def holds(self, case: Case) -> bool:
        """False when further findings are a new incident: it has ended, or what it joined has."""
        state = case.incident.state
        if state is not IncidentState.INHIBITED:
            return not state.ended
        root = self.numbered(case.incident.joined)
        return not case.companion and root is not None and root.incident.state in _HOLDING

    def close(self, case: Case) -> None:
        """Further findings of its policy and subject are a new incident."""
        if self._current.get(case.key) is case:
            del self._current[case.key]

    def remove(self, case: Case) -> None:
        """Forget a case."""
        self.close(case)
        number, subject = case.incident.id, case.incident.subject
        self._all.pop(number, None)
        about = self._subjects.get(subject, {})
        about.pop(number, None)
        if not about:
            self._subjects.pop(subject, None)
