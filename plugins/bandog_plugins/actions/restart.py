"""`restart`: one RestartUnit job for the unit of a service, and the proof that the service serves again.

What speaks against it is looked at first; the job itself is in `_job`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from bandog import (
    Action,
    Duration,
    Options,
    Proof,
    Request,
    Result,
    Site,
    SystemdError,
    UnitState,
    hookimpl,
)

from . import _driver, _job, _proof, _stuck, _unit
from ._pid1 import Pid1


class RestartWith(Options):
    """`settle`: how long it must stay ready to be proved. `timeout`: to ready, else the service's own."""

    settle: Duration = timedelta(seconds=10)
    timeout: Duration | None = None


class Restart(Action):
    """Restart the unit of one service; see the module."""

    name = "restart"
    With = RestartWith
    per_service = True
    run_deadline = timedelta(minutes=8)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._watch = _proof.Watch()

    def run(self, request: Request, site: Site) -> Result:
        """Look, refuse if anything speaks against it, else ask systemd for the restart."""
        if request.service is None:
            return Result.skipped("no service of ours uses it")
        try:
            service = site.services.get(request.service)
        except KeyError:
            return Result.skipped(f"there is no service {request.service} any more")
        pid1 = Pid1(site)
        try:
            unit = pid1.unit(service.unit)
            return self._look(request, site, pid1, unit)
        except SystemdError as error:
            return Result.retry(f"systemd did not answer: {error}", unit=service.unit)

    def prove(self, request: Request, result: Result, site: Site) -> Proof:
        """Active since the act, ready, and both for `settle`."""
        return self._watch.prove(request, result, site, settle=self._with(request).settle)

    def proof_time(self, request: Request, site: Site) -> timedelta:
        """The service's time to ready plus `settle`."""
        wanted = self._with(request)
        ready = _proof.time_to_ready(request, site, wanted=wanted.timeout, otherwise=self.proof_deadline)
        return ready + wanted.settle

    def _with(self, request: Request) -> RestartWith:
        return RestartWith.model_validate(dict(request.with_))

    def _look(self, request: Request, site: Site, pid1: Pid1, unit: UnitState) -> Result:
        known = {"unit": unit.name, "before": unit.invocation_id}
        if _unit.restarted_by_manager(unit, request.found_at, site):
            return Result.done(
                f"{unit.name} was restarted by systemd after the finding; nothing to do but prove it",
                by_manager=True,
                **known,
            )
        refused = _unit.refusal(unit, site)
        if refused is not None:
            return Result.skipped(refused, **known)
        stuck = _stuck.stuck_tasks(site, unit.control_group)
        if stuck:
            return _job.unkillable(stuck, f"{unit.name} was not touched", known)
        if unit.job is not None:
            return Result.retry(f"systemd has a job for {unit.name} already", **known)
        dead_driver = _driver.mismatch(site)
        if dead_driver is not None and site.services.ready(request.service or "").ready:
            return Result.skipped(
                f"would turn a living service into a dead one: driver and library differ ({dead_driver})",
                **known,
            )
        return _job.renew(request, site, pid1, unit, known)


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(Restart)
