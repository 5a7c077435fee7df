"""What the control socket offers: the operator's orders and questions, carried out on the loop.

Every order leaves a line in the agent's own record (incident 0) with who gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from ..domain import subjects
from ..domain.changes import Acked
from ..domain.model import Fact, Finding, Incident, Severity
from ..domain.policy import format_duration
from ..host.site import Clock
from ..services.registry import Registry
from ..store.rows import AddEvent, DropHold, Row, SaveHold
from .control import Handler, OperatorError
from .executor import Executor
from .gates import Holds
from .report import open_incidents

MOST_HOLD = timedelta(days=90)


class Pipe(Protocol):
    """The part of the pipeline that operations use."""

    def apply(self, event: Acked) -> None:
        """Put an input into the engine."""

    def found(self, finding: Finding) -> None:
        """Take a finding."""


@dataclass(slots=True, kw_only=True)
class Operations:
    """The orders. `commit` hands rows to the store."""

    clock: Clock
    pipe: Pipe
    executor: Executor
    holds: Holds
    registry: Callable[[], Registry]
    incidents: Callable[[], Mapping[int, Incident]]
    kinds: Callable[[], Sequence[str]]
    commit: Callable[..., Awaitable[None]]
    status: Callable[[], dict[str, Any]]
    plugins: Callable[[], list[dict[str, Any]]]
    test_targets: Callable[[Sequence[str], str], Awaitable[list[tuple[str, bool, str]]]]
    rearmed: Callable[[], None]
    reload: Callable[[], Awaitable[str]]

    def table(self) -> dict[str, Handler]:
        """Return operation name → function."""
        return {
            "status": self.status,
            "plugins": self.plugins,
            "hold": self.hold,
            "release": self.release,
            "ack": self.ack,
            "rearm": self.rearm,
            "drill": self.drill,
            "notify_test": self.notify_test,
            "reload": self.reloaded,
        }

    def _event(self, what: str, why: str, by: str) -> AddEvent:
        return AddEvent(incident=0, at=self.clock.now(), what=what, why=why, data={"by": by})

    async def _record(self, *rows: Row) -> None:
        """Write an order down before it is confirmed; an order that cannot be kept is an error."""
        await within(self.commit(*rows))

    async def hold(self, target: str, seconds: float, reason: str, by: str) -> dict[str, Any]:
        """Pause `target` for `seconds`."""
        duration = timedelta(seconds=seconds)
        if not timedelta() < duration <= MOST_HOLD:
            raise OperatorError(f"{format_duration(duration)} is no time to hold; at most {format_duration(MOST_HOLD)}")
        if not reason.strip():
            raise OperatorError("a hold needs a reason")
        known = ["*", *(one.name for one in self.registry())]
        policies = {one.policy for one in self.incidents().values()}
        now = self.clock.now()
        row = SaveHold(target=target, by=by, reason=reason, made=now, until=now.plus(duration))
        self.holds.add(row)
        await self._record(row, self._event("held", f"{target} for {format_duration(duration)}: {reason}", by))
        name = "this host" if target == "*" else target
        note = "" if target in known or target in policies else f" (there is no service called {target})"
        return {
            "text": f"held: nothing disruptive happens to {name} for {format_duration(duration)}{note}",
            "target": target,
            "until": row.until.utc.isoformat() if row.until else None,
        }

    async def release(self, target: str, by: str) -> dict[str, Any]:
        """End a pause."""
        if self.holds.drop(target) is None:
            raise OperatorError(f"{'this host' if target == '*' else target} is not held; bandog status lists holds")
        await self._record(DropHold(target=target), self._event("released", target, by))
        self.executor.poke()
        return {"text": f"released: {'this host' if target == '*' else target}", "target": target}

    def ack(self, incident: int, by: str) -> dict[str, Any]:
        """Take over an incident."""
        found = self.incidents().get(incident)
        if found is None or found.state.ended:
            raise OperatorError(f"there is no open incident #{incident}; bandog incidents --open lists them")
        self.pipe.apply(Acked(incident=incident, by=by))
        return {"text": f"#{incident} is yours, {by}: bandog takes no further step on it", "incident": incident}

    async def rearm(self, by: str) -> dict[str, Any]:
        """Arm again after the breaker tripped, and name the open incidents whose step was only observed."""
        if not self.executor.rearm():
            raise OperatorError("nothing has tripped; there is nothing to arm again")
        self.rearmed()
        await self._record(self._event("rearmed", "by a person", by))
        self.executor.poke()
        waiting = [one for one in open_incidents(self.incidents().values()) if one["waits"]]
        text = "armed again: the configured mode holds, the host's budget begins anew, those of services stay"
        if waiting:
            text += "; what was only observed is not made up for"
        return {"text": text, "waiting": waiting}

    def drill(
        self,
        kinds: Sequence[str],
        service: str,
        subject: str | None,
        facts: Mapping[str, Fact],
        really: bool,
        by: str,
    ) -> dict[str, Any]:
        """Send findings marked as a test through the engine."""
        if service not in {one.name for one in self.registry()}:
            raise OperatorError(f"no service {service} is loaded; after a new file: systemctl reload bandog")
        unknown = [kind for kind in kinds if kind not in self.kinds()]
        if unknown:
            raise OperatorError(f"no plugin states {', '.join(unknown)}; known: {', '.join(sorted(self.kinds()))}")
        now = self.clock.now()
        for kind in kinds:
            self.pipe.found(
                Finding(
                    kind=kind,
                    subject=subject or subjects.service(service),
                    severity=Severity.ERROR,
                    at=now,
                    detector="drill",
                    facts={**facts, "drill_by": by, **({"really": True} if really else {})},
                    live=True,
                    drill=True,
                    services=(service,),
                )
            )
        raised = [one.id for one in self.incidents().values() if one.drill and not one.state.ended]
        if not raised:
            raise OperatorError("no policy takes such a finding; give its facts, like --fact xid=94")
        numbers = ", ".join(f"#{number}" for number in raised)
        return {"text": f"drill under way: {numbers}; bandog show {raised[-1]} follows it", "incidents": raised}

    async def notify_test(self, targets: Sequence[str], by: str) -> dict[str, Any]:
        """Send a test message and say what became of it at each target."""
        told = await self.test_targets(targets, by)
        if not told:
            raise OperatorError("no target is configured; see notify: in /etc/bandog/bandog.yaml")
        lines = [f"{name}: {'delivered' if ok else 'FAILED'} {why}".rstrip() for name, ok, why in told]
        return {"ok": all(ok for _, ok, _ in told), "lines": lines}

    async def reloaded(self) -> dict[str, Any]:
        """Read the configuration again."""
        return {"text": await self.reload()}


async def within(written: Awaitable[None]) -> None:
    """Wait until an order is on the disk, 5 s at most; raises OperatorError past them."""
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(written)), 5)
    except TimeoutError:
        raise OperatorError("the order holds now, but could not be written down: the disk does not answer") from None
