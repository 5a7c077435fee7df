"""The one sender: everything that people are told goes through here, and nobody waits for it.

`tell` and its like only put a message into the outbox. A thread for each outlet delivers, so that a
mail server that hangs holds up no chat; a dedicated thread opens the outlets at start, gives up
deliveries past their deadline, and hands to the last sink what no outlet would take.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from ..domain.changes import IncidentChanged
from ..domain.model import Incident, Instant
from ..domain.policy import Policy
from ..host.site import Clock
from ..store.rows import Row, SaveMessage
from .author import Author
from .lastsink import LastSink
from .letters import Mail, compose
from .messages import Message
from .outbox import Outbox, Outcome
from .outlet_queue import OutletState, Pace
from .outlets import AppriseOutlet, Outlet, OutletError, warm_up
from .secrets import Secrets

log = logging.getLogger(__name__)

_DEADLINE = timedelta(seconds=45)
# Threads that may hang in one outlet before it gets no more of them.
_ABANDONED = 3
_LONGEST_SLEEP = timedelta(seconds=30)

OpenOutlet = Callable[[str], Outlet]
"""Builds the outlet of a URL; raises OutletError."""


@dataclass(slots=True)
class _Flight:
    """A delivery under way in one outlet's thread."""

    generation: int
    batch: tuple[Message, ...]
    since: Instant


@dataclass(slots=True)
class _Line:
    """One outlet with its thread. A new generation replaces a thread that hangs."""

    id: str
    outlet: Outlet
    generation: int = 0
    abandoned: int = 0
    flight: _Flight | None = None
    idle: bool = False  # no thread serves it: too many hang


class Sender:
    """Tells people; see the module. `tell`, `tell_request` and `say` return at once, from any thread.

    `targets` are the names of `notify:` with their URLs, secrets already read. `save` takes rows
    for the spool from any thread and does not wait. `policy_of` gives the policy of an incident,
    for what comes next.
    """

    def __init__(
        self,
        targets: Mapping[str, Sequence[str]],
        *,
        host: str,
        clock: Clock,
        secrets: Secrets,
        last: LastSink,
        save: Callable[[Row], object] = lambda row: None,
        policy_of: Callable[[str], Policy | None] = lambda name: None,
        open_outlet: OpenOutlet | None = None,
        pace: Pace | None = None,
        deadline: timedelta = _DEADLINE,
    ) -> None:
        self._host = host
        self._clock = clock
        self._secrets = secrets
        self._last = last
        self._save = save
        self._open = open_outlet or (lambda url: AppriseOutlet(url, secrets))
        self._real = open_outlet is None
        self._deadline = deadline
        self._author = Author(host, clock, policy_of)
        self._outbox = Outbox(_outlet_ids(targets), pace)
        self._lines: dict[str, _Line] = {}
        self._to_open: dict[str, str] = _outlet_urls(targets)
        self._unheard: list[Message] = []
        self._state = threading.Condition()
        self._stopping = False
        self.problems: dict[str, str] = {}
        self.overruns = 0
        self.late = 0

    # --- what others call ----------------------------------------------------------------------

    def start(self, spooled: Iterable[SaveMessage] = ()) -> None:
        """Take up what an earlier run left, and begin to deliver."""
        with self._state:
            self._keep(Outcome(rows=self._outbox.restore(spooled)))
        self._thread(self._watch, "bandog-tell")

    def tell(self, change: IncidentChanged) -> None:
        """Tell the change's `notify` targets, in the incident's thread; nothing unless `change.tell`."""
        if change.tell:
            self._add(self._author.of_change(change))

    def tell_request(self, incident: Incident, *, to: Sequence[str] = (), text: str = "", urgent: bool = False) -> None:
        """Tell `to` (everyone when empty) what a `notify` step says, in the incident's thread."""
        self._add(self._author.of_step(incident, to=to, text=text, urgent=urgent))

    def say(self, text: str, *, urgent: bool = False, to: Sequence[str] = ()) -> None:
        """Tell something about bandog itself; everyone when `to` is empty."""
        self._add(self._author.of_bandog(text, to=to, urgent=urgent))

    def retarget(self, targets: Mapping[str, Sequence[str]]) -> None:
        """Take the targets of a reload; what is not delivered yet goes to them."""
        with self._state:
            self._keep(self._outbox.retarget(_outlet_ids(targets)))
            for line in self._lines.values():
                line.generation += 1
            self._lines = {}
            self._to_open = _outlet_urls(targets)
            self.problems = {}
            self._state.notify_all()

    def states(self) -> tuple[OutletState, ...]:
        """Return how every outlet stands."""
        with self._state:
            return self._outbox.states()

    def stop(self, patience: timedelta = timedelta(seconds=5)) -> bool:
        """Deliver what can be delivered within `patience`, then end the threads; True if nothing is left."""
        with self._state:
            self._state.wait_for(lambda: self._outbox.empty and not self._unheard, patience.total_seconds())
            self._stopping = True
            self._state.notify_all()
            return self._outbox.empty

    # --- inside --------------------------------------------------------------------------------

    def _add(self, message: Message) -> None:
        with self._state:
            self._keep(self._outbox.add(message))
            self._state.notify_all()

    def _keep(self, outcome: Outcome) -> None:
        """Pass rows to the spool and what is unheard to the dedicated thread. The lock is held."""
        # Whoever takes rows may have gone by now; what stays in the spool is sent again after the start.
        for row in outcome.rows if not self._stopping else ():
            self._save(row)
        self._unheard.extend(outcome.unheard)

    # --- the dedicated thread ------------------------------------------------------------------

    def _watch(self) -> None:
        if self._real:
            warm_up()
        while True:
            with self._state:
                if self._stopping:
                    return
                opening, self._to_open = self._to_open, {}
                unheard, self._unheard = self._unheard, []
                if not opening and not unheard:
                    self._state.wait(self._give_up_late().total_seconds())
                    continue
            for outlet, url in opening.items():
                self._open_line(outlet, url)
            for message in unheard:
                self._last.tell(f"{message.title}: {message.text}", urgent=message.urgent)
            with self._state:
                self._state.notify_all()

    def _open_line(self, outlet: str, url: str) -> None:
        try:
            opened = self._open(url)
        except OutletError as error:
            why = self._secrets.mask(str(error))
            log.warning("nobody can be told by outlet %s: %s", outlet, why)
            with self._state:
                self.problems[outlet] = why
                self._keep(self._outbox.close(outlet))
            return
        with self._state:
            line = self._lines[outlet] = _Line(outlet, opened)
        self._serve_in_thread(line)

    def _give_up_late(self) -> timedelta:
        """Give up deliveries past their deadline; return how long to sleep. The lock is held."""
        now, sleep = self._clock.now(), _LONGEST_SLEEP
        for line in self._lines.values():
            if line.flight is None:
                continue
            left = self._deadline - now.since(line.flight.since)
            if left > timedelta():
                sleep = min(sleep, left)
                continue
            batch, line.flight = line.flight.batch, None
            line.generation += 1
            line.abandoned += 1
            self.overruns += 1
            why = f"no answer within {self._deadline.total_seconds():g} s"
            log.warning("delivery given up outlet=%s: %s", line.id, why)
            self._keep(self._outbox.done(line.id, batch, why, now))
            line.idle = line.abandoned >= _ABANDONED
            if not line.idle:
                self._serve_in_thread(line)
            sleep = timedelta()
        return sleep

    # --- a thread for each outlet --------------------------------------------------------------

    def _serve_in_thread(self, line: _Line) -> None:
        generation = line.generation
        self._thread(lambda: self._serve(line, generation), f"bandog-tell-{line.id}")

    def _serve(self, line: _Line, generation: int) -> None:
        while (batch := self._take(line, generation)) is not None:
            mail = self._mail(batch)
            error = line.outlet.send(mail)
            if not self._landed(line, generation, batch, error):
                return

    def _take(self, line: _Line, generation: int) -> tuple[Message, ...] | None:
        """Wait for something to send; None when this thread is not wanted any more."""
        with self._state:
            while not self._stopping and line.generation == generation:
                now = self._clock.now()
                batch = self._outbox.next(line.id, now)
                if batch:
                    line.flight = _Flight(generation, batch, now)
                    # The watch has a new deadline to keep.
                    self._state.notify_all()
                    return batch
                wait = self._outbox.wait(line.id, now)
                self._state.wait(None if wait is None else max(0.01, wait.total_seconds()))
        return None

    def _mail(self, batch: Sequence[Message]) -> Mail:
        mail = compose(batch, self._clock.now(), self._host)
        return replace(mail, title=self._secrets.mask(mail.title), body=self._secrets.mask(mail.body))

    def _landed(self, line: _Line, generation: int, batch: tuple[Message, ...], error: str | None) -> bool:
        """Book a delivery; False when this thread had been given up meanwhile."""
        with self._state:
            now = self._clock.now()
            if line.generation != generation:
                self.late += 1
                line.abandoned -= 1
                if error is None:
                    self._keep(self._outbox.late(line.id, batch, now))
                if line.idle and self._lines.get(line.id) is line:
                    line.idle = False
                    self._serve_in_thread(line)
                self._state.notify_all()
                return False
            line.flight = None
            self._keep(self._outbox.done(line.id, batch, error, now))
            self._state.notify_all()
        if error is not None:
            log.warning("delivery failed outlet=%s: %s", line.id, self._secrets.mask(error))
        return True

    def _thread(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()


def _outlet_ids(targets: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {name: [f"{name}/{place}" for place in range(len(urls))] for name, urls in targets.items()}


def _outlet_urls(targets: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {f"{name}/{place}": url for name, urls in targets.items() for place, url in enumerate(urls)}
