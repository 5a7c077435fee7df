"""Plays a log through the real detectors, engine and budgets with the log's own clock.

Nothing acts: where the daemon would hand a request to an action, the budgets are asked and charged
and the step ends as it would (WOULD in observe mode; in enforce mode as the caller assumes).
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ..domain.budgets import Allowance, Ledger
from ..domain.changes import Change, FindingSeen, IncidentChanged, Input, RequestMade, StepReport, Tick
from ..domain.engine import Engine
from ..domain.model import Finding, Instant, Record, Request, StepState
from ..domain.policy import allows
from ..plugin import LogDetector
from ..services.registry import Registry
from ..sources.prefilter import Prefilter

PROOF_TAKES = timedelta(seconds=60)
"""How long a proof is taken to need where enforce mode is assumed."""
RETURN_TO_IDLE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline: what changed, when by the log's clock, and from which line."""

    at: Instant
    line: int | None
    change: IncidentChanged


@dataclass(slots=True)
class Tally:
    """What a replay came to."""

    records: int = 0
    findings: int = 0
    incidents: int = 0
    would: dict[str, int] = field(default_factory=dict)
    exhausted: int = 0


class Replay:
    """One replay. `mode` is what the configuration allows; `assume` how an act would end."""

    def __init__(
        self,
        engine: Engine,
        detectors: Sequence[LogDetector],
        ledger: Ledger,
        registry: Registry,
        *,
        mode: str | tuple[str, ...],
        assume: StepState = StepState.PROVED,
        tell: Callable[[Moment], None],
    ) -> None:
        self.tally = Tally()
        self.ledger = ledger
        self.now: Instant | None = None
        self._engine = engine
        self.detectors = list(detectors)
        self._wanted = {one.name: Prefilter(one.needles) for one in detectors}
        self._registry = registry
        self._mode = mode
        self._assume = assume
        self._tell = tell
        self._due: list[tuple[timedelta, int, StepReport]] = []
        self._order = itertools.count()
        self._busy_until: timedelta | None = None

    def is_open(self) -> bool:
        """True while some detector wants every record."""
        return any(one.open for one in self.detectors)

    def feed(self, record: Record) -> None:
        """Let time pass to the record's, then give it to the detectors."""
        self._pass_to(record.at)
        self.tally.records += 1
        now = self.now or record.at
        live = dataclasses.replace(record, live=True, at=now)
        for detector in self.detectors:
            if detector.open or self._wanted[detector.name].wants_text(record.text):
                for finding in detector.feed(live):
                    self._found(finding, detector.name)

    def flush(self, now: Instant) -> None:
        """Close what has ended; the reader calls it once a second of the log while a block is open."""
        for detector in self.detectors:
            if detector.open:
                for finding in detector.flush(now):
                    self._found(dataclasses.replace(finding, live=True), detector.name)

    def end(self, after: timedelta = timedelta()) -> None:
        """End of the log: let `after` more time pass, so that incidents can come to their end."""
        if self.now is not None:
            self._pass_to(self.now.plus(after))

    def _found(self, finding: Finding, detector: str) -> None:
        self.tally.findings += 1
        services = finding.services or self._services(finding)
        self._apply(FindingSeen(finding=dataclasses.replace(finding, detector=detector, services=services)))

    def _services(self, finding: Finding) -> tuple[str, ...]:
        kind, _, address = finding.subject.partition(":")
        if kind == "gpu":
            return tuple(one.name for one in self._registry.on_gpu(address))
        unit = finding.facts.get("unit")
        found = self._registry.of_unit(unit) if isinstance(unit, str) else None
        return (found.name,) if found is not None else ()

    def _pass_to(self, at: Instant) -> None:
        """Tick up to `at`: each second while something is under way, in one step else."""
        now = self.now
        if now is None or now.boot_id != at.boot_id:
            self.now = at
            self._apply(Tick())
            return
        if at.boottime <= now.boottime:
            return
        for moment in self._ticks(now, at):
            self.now = moment
            while self._due and self._due[0][0] <= moment.boottime:
                self._apply(heapq.heappop(self._due)[2])
            self._apply(Tick())
        self.now = at

    def _ticks(self, now: Instant, at: Instant) -> Iterator[Instant]:
        while at.boottime - now.boottime > timedelta(seconds=1):
            left = at.boottime - now.boottime
            busy = bool(self._due) or (self._busy_until is not None and now.boottime < self._busy_until)
            waiting = any(not one.state.ended for one in self._engine.incidents.values())
            step = timedelta(seconds=1 if busy else 60) if busy or waiting else left
            now = now.plus(min(step, left))
            yield now

    def _apply(self, event: Input) -> None:
        assert self.now is not None
        changes: list[Change] = list(self._engine.apply(event, self.now))
        line = event.finding.line if isinstance(event, FindingSeen) else None
        for change in changes:
            if isinstance(change, IncidentChanged):
                self.tally.incidents += change.what == "opened"
                self._busy_until = self.now.boottime + RETURN_TO_IDLE
                self._tell(Moment(at=self.now, line=line, change=change))
            elif isinstance(change, RequestMade):
                self._request(change.request)

    def _request(self, request: Request) -> None:
        assert self.now is not None
        if not request.disruptive:
            self._later(timedelta(), request, StepState.PROVED, "")
            return
        service = None
        if request.service is not None:
            service = self._registry.get(request.service).mode
        acting = allows(self._mode, request.action) and request.mode == "enforce" and allows(service, request.action)
        verdict = self.ledger.check(request, self.now, shadow=not acting)
        if verdict.kind is Allowance.WAIT and verdict.until is not None:
            self._later(verdict.until.since(self.now), request, StepState.WAITING, verdict.why)
        elif verdict.kind is Allowance.EXHAUSTED or verdict.kind is Allowance.TRIPPED:
            self.tally.exhausted += 1
            self._later(timedelta(), request, StepState.EXHAUSTED, verdict.why)
            return
        self.ledger.charge(request, self.now, shadow=not acting)
        place = f" of {request.service}" if request.service else ""
        self.tally.would[request.action] = self.tally.would.get(request.action, 0) + 1
        if not acting:
            self._later(timedelta(), request, StepState.WOULD, f"would run {request.action}{place}")
            return
        self._later(timedelta(), request, StepState.RUNNING, f"{request.action}{place}")
        self._later(PROOF_TAKES, request, self._assume, f"{request.action}{place}: assumed {self._assume.value}")

    def _later(self, wait: timedelta, request: Request, state: StepState, why: str) -> None:
        assert self.now is not None
        report = StepReport(request=request.id, state=state, why=why)
        if wait <= timedelta():
            self._apply(report)
        else:
            heapq.heappush(self._due, (self.now.boottime + wait, next(self._order), report))
