"""Whether a disruptive request may act now: gates, mode, others under way, budgets, in that order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..domain.budgets import Allowance, Ledger, Stop
from ..domain.model import Incident, Request, StepState
from ..domain.policy import allows
from ..host.site import Clock
from ..services.registry import Service
from ..store.rows import AddCharge, Remember
from ..store.store import Store
from .course import Course, End
from .gates import Gate
from .slot import Slot

log = logging.getLogger(__name__)

BUDGETS_KEY = "budgets"
"""Under it `Ledger.export()` is remembered."""
RECHECK = timedelta(seconds=5)
_AT_LEAST = timedelta(milliseconds=100)

Mode = str | tuple[str, ...]


class Admission:
    """Decides, and keeps the ledger's state on the disk. On the loop only.

    `mode` and `service_of` are asked each time, so that a reload takes effect at once.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        ledger: Ledger,
        gates: Sequence[Gate],
        slot: Slot,
        incident_of: Callable[[int], Incident | None],
        service_of: Callable[[str], Service | None],
        mode: Callable[[], Mode],
        on_tripped: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._store = store
        self._ledger = ledger
        self._gates = tuple(gates)
        self._slot = slot
        self._incident_of = incident_of
        self._service_of = service_of
        self._mode = mode
        self._on_tripped = on_tripped
        self._exported = ledger.export()

    async def objection(self, request: Request) -> tuple[str | None, bool]:
        """Return the first gate's reason to wait, and whether one may wait long for that gate."""
        incident = self._incident_of(request.incident)
        for gate in self._gates:
            reason = await gate.check(request, incident)
            if reason is not None:
                return reason, gate.patient
        return None, False

    def decide(self, course: Course) -> End | tuple[str, timedelta] | None:
        """Return an end, or a reason to wait with how long; None: the slot is taken for `course`.

        Without a pause of the loop, so that nothing can change between the last look and the slot.
        """
        request = course.request
        if request.drill and request.facts.get("really") is not True:
            return End(StepState.WOULD, f"drill: {_would_have(request)}")
        observed = self._observed(request)
        if observed is not None:
            return self._shadow(request, observed)
        busy = self._slot.busy(request)
        if busy is not None:
            return busy, RECHECK
        now = self._clock.now()
        verdict = self._ledger.check(request, now)
        self.save()
        if verdict.kind is Allowance.TRIPPED:
            if verdict.first:
                self._tripped(verdict.why)
            return self._shadow(request, verdict.why)
        if verdict.kind is Allowance.EXHAUSTED:
            return End(StepState.EXHAUSTED, verdict.why)
        if verdict.kind is Allowance.WAIT:
            left = verdict.until.since(now) if verdict.until is not None else RECHECK
            return verdict.why, max(left, _AT_LEAST)
        self._slot.take(course)
        return None

    def charge(self, request: Request) -> tuple[AddCharge, Remember]:
        """Count the request and return the rows to commit with its intent."""
        charge = self._ledger.charge(request, self._clock.now())
        self._exported = self._ledger.export()
        return (
            AddCharge(keys=charge.keys, at=charge.at, request=charge.request),
            Remember(key=BUDGETS_KEY, value=self._exported),
        )

    def healthy(self, service: str) -> None:
        """A service was proved to serve."""
        self._ledger.healthy(service, self._clock.now())
        self.save()

    def trip(self, why: str) -> None:
        """Open the breaker by hand, unless it is open."""
        if self._ledger.breaker is None:
            self._ledger.breaker = Stop(at=self._clock.now(), by="", why=why)
            self._tripped(why)

    def save(self) -> None:
        """Commit the ledger's state if it has changed."""
        exported = self._ledger.export()
        if exported != self._exported:
            self._exported = exported
            self._store.commit(Remember(key=BUDGETS_KEY, value=exported))

    def _tripped(self, why: str) -> None:
        log.error("breaker tripped why=%s", why)
        self.save()
        self._on_tripped(why)

    def _observed(self, request: Request) -> str | None:
        """Return why this request may only be observed; the strictest of all modes wins."""
        if self._ledger.breaker is not None:
            return self._ledger.breaker.why
        if not allows(self._mode(), request.action):
            return "mode: observe"
        if request.mode != "enforce":
            return f"policy {request.policy} only observes"
        service = self._service_of(request.service) if request.service is not None else None
        if service is not None and not allows(service.mode, request.action):
            return f"service {service.name} is only observed"
        return None

    def _shadow(self, request: Request, why: str) -> End:
        """Observe: count it against budgets of its own and say what would have been done."""
        now = self._clock.now()
        verdict = self._ledger.check(request, now, shadow=True)
        if verdict.kind is Allowance.EXHAUSTED:
            return End(StepState.EXHAUSTED, f"would not have {past(request.action)}: {verdict.why} ({why})")
        charge = self._ledger.charge(request, now, shadow=True)
        self._store.commit(AddCharge(keys=charge.keys, at=charge.at, request=charge.request, shadow=True))
        return End(StepState.WOULD, f"{_would_have(request)} ({why})")


def _would_have(request: Request) -> str:
    return f"would have {past(request.action)} {request.service or request.subject}"


def past(action: str) -> str:
    """Return the past participle of an action's name: `restarted`, `reset`, `done nccl-dump on`."""
    if not action.isalpha():
        return f"done {action} on"
    if action in ("reset", "set", "put", "cut"):
        return action
    return action + ("d" if action.endswith("e") else "ed")
