"""Writes the messages: about a change of an incident, a `notify` step, or bandog itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..domain.changes import IncidentChanged
from ..domain.model import Incident
from ..domain.policy import Policy
from ..host.site import Clock
from . import messages as texts
from .messages import Message
from .wording import card_lines, plain

_TITLES = 512
_LINES = 20
_LINE = 400


class Author:
    """Numbers and dates what it writes, and keeps the title of each thread. Any thread may call it.

    `policy_of` gives the policy of an incident, for what comes next.
    """

    def __init__(self, host: str, clock: Clock, policy_of: Callable[[str], Policy | None]) -> None:
        self._host = host
        self._clock = clock
        self._policy_of = policy_of
        self._count = itertools.count(1)
        self._titles: dict[int, str] = {}
        self._lock = threading.Lock()

    def of_change(self, change: IncidentChanged) -> Message:
        """Return the message to the change's `notify` targets, in the incident's thread."""
        return self._about(
            change.incident,
            to=change.notify,
            what=change.what,
            text=texts.text_of(change, self._policy_of(change.incident.policy)),
            tone=texts.tone_of(change),
            urgent=change.urgent,
            action=change.action,
        )

    def of_step(self, incident: Incident, *, to: Sequence[str], text: str, urgent: bool) -> Message:
        """Return what a `notify` step says, in the incident's thread."""
        said = _quoted(text) or f"{incident.state.value}: {plain(incident.why, _LINE)}"
        said = "\n".join([said, *card_lines(incident.subject, incident.facts)])
        if incident.drill:
            said = f"{texts.EXERCISE}\n{said}"
        return self._about(
            incident, to=to, what="notify", text=said, tone=_tone(urgent), urgent=urgent, action="notify"
        )

    def of_bandog(self, text: str, *, to: Sequence[str], urgent: bool) -> Message:
        """Return a message about bandog itself."""
        return Message(
            id=self._next_id(),
            to=tuple(to),
            title=f"[{plain(self._host, 40)}] bandog",
            text=_quoted(text),
            made=self._clock.now(),
            what="agent",
            tone=_tone(urgent),
            urgent=urgent,
            fields={"host": self._host, "what": "agent", "urgent": urgent},
        )

    def _about(
        self,
        incident: Incident,
        *,
        to: Sequence[str],
        what: str,
        text: str,
        tone: str,
        urgent: bool,
        action: str | None,
    ) -> Message:
        fields = texts.fields_of(incident, self._host, what, action)
        return Message(
            id=self._next_id(),
            to=tuple(to),
            title=self._title(incident),
            text=text,
            made=self._clock.now(),
            incident=incident.id,
            thread=texts.thread_of(incident, self._host),
            what=what,
            footer="" if incident.state.ended else texts.footer_of(incident),
            tone=tone,
            urgent=urgent,
            fields={**fields, "urgent": urgent},
        )

    def _title(self, incident: Incident) -> str:
        """The first title stays the thread's: some mail programs start a new thread with a new subject."""
        with self._lock:
            title = self._titles.setdefault(incident.id, texts.title_of(incident, self._host))
            if len(self._titles) > _TITLES:
                self._titles.pop(next(iter(self._titles)))
        return title

    def _next_id(self) -> str:
        now = self._clock.now()
        return f"{now.boot_id[:8]}.{now.boottime // timedelta(microseconds=1)}.{next(self._count)}"


def _quoted(text: str) -> str:
    return "\n".join(plain(line, _LINE) for line in text.splitlines()[:_LINES])


def _tone(urgent: bool) -> str:
    return "failure" if urgent else "warning"
