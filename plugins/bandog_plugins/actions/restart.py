"""`restart`: one RestartUnit job for the unit of a service, and the proof that the service serves again.

The act is a single job of systemd's, because a stop that we follow with a start leaves the service
down if we die between them. Only for `KillMode=process|none`, where that job would start the unit
beside its old processes, do we stop and start ourselves, with the state between on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from bandog import (
    Action,
    Duration,
    JobOutcome,
    Options,
    Proof,
    Request,
    Result,
    Site,
    SystemdError,
    UnitState,
    hookimpl,
)

from . import _driver, _proof, _stuck, _unit
from ._pid1 import Pid1

# A stop may take TimeoutStopSec for SIGTERM; past this we stop waiting and let the proof watch.
_STOP_CAP = timedelta(minutes=3)
_STOP_SLACK = timedelta(seconds=15)
_START_WAIT = timedelta(seconds=60)
# nvidia-resiliency-ext waits up to 50 s for GPU memory to come back; processes go sooner than that.
_LEFTOVER_WAIT = timedelta(seconds=30)
_NOTE = timedelta(seconds=10)


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
        timeout = wanted.timeout
        if timeout is None:
            try:
                timeout = site.services.get(request.service or "").start.timeout
            except KeyError:
                timeout = self.proof_deadline
        return timeout + wanted.settle

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
            return _unkillable(stuck, f"{unit.name} was not touched", known)
        if unit.job is not None:
            return Result.retry(f"systemd has a job for {unit.name} already", **known)
        dead_driver = _driver.mismatch(site)
        if dead_driver is not None and site.services.ready(request.service or "").ready:
            return Result.skipped(
                f"would turn a living service into a dead one: driver and library differ ({dead_driver})",
                **known,
            )
        if unit.kill_mode in ("process", "none"):
            return self._stop_and_start(request, site, pid1, unit, known)
        return self._restart(site, pid1, unit, known)

    def _restart(self, site: Site, pid1: Pid1, unit: UnitState, known: Mapping[str, Any]) -> Result:
        if unit.result == "start-limit-hit":
            # Part of this one counted restart: without it systemd would refuse the job.
            pid1.reset_failed(unit.name)
        outcome = _asked(lambda: pid1.restart(unit.name, deadline=_stop_time(unit)))
        if outcome.done:
            return Result.done(f"{unit.name} was restarted", job=outcome.result, **known)
        return self._judge(site, pid1, unit, outcome, known)

    def _judge(self, site: Site, pid1: Pid1, unit: UnitState, outcome: JobOutcome, known: Mapping[str, Any]) -> Result:
        """Say what a job that did not end `done` means, from how the unit stands now."""
        known = {**known, "job": outcome.result}
        told = f"systemd's job ended {outcome.result}" + (f" ({outcome.why})" if outcome.why else "")
        if outcome.result == "refused":
            return Result.failed(f"systemd refused to restart {unit.name}: {outcome.why}", **known)
        try:
            now = pid1.unit(unit.name)
        except SystemdError as error:
            return Result.done(f"{told}; systemd does not answer ({error})", uncertain=True, **known)
        stuck = _stuck.stuck_tasks(site, now.control_group)
        if stuck and now.active_state == "deactivating":
            return _unkillable(stuck, told, known)
        if now.active_state == "failed":
            return Result.failed(f"{told}; {unit.name} failed: {now.result}", result=now.result, **known)
        if now.active_state == "inactive" and now.job is None:
            return Result.failed(f"{told}; {unit.name} is down", **known)
        return Result.done(f"{told}; {unit.name} is {now.active_state}", uncertain=True, **known)

    def _stop_and_start(
        self, request: Request, site: Site, pid1: Pid1, unit: UnitState, known: Mapping[str, Any]
    ) -> Result:
        """For KillMode=process|none: give what systemd leaves behind time to end before the start."""
        try:
            site.wait(site.note(request, phase="stopping"), deadline=_NOTE)
        except TimeoutError:
            return Result.retry("the stop could not be recorded, so nothing was done", **known)
        outcome = _asked(lambda: pid1.stop(unit.name, deadline=_stop_time(unit)))
        if not outcome.done and outcome.result != "timeout":
            return self._judge(site, pid1, unit, outcome, known)
        self._note_phase(request, site, "stopped")
        left = self._wait_for_leftovers(site, unit.control_group)
        self._note_phase(request, site, "starting")
        outcome = _asked(lambda: pid1.start(unit.name, deadline=_START_WAIT))
        known = {**known, "left": len(left)} if left else known
        stuck = _stuck.stuck_tasks(site, unit.control_group) if left else ()
        stuck = tuple(one for one in stuck if one.pid in left)
        if stuck:
            return _unkillable(stuck, f"{unit.name} was started beside it", known)
        beside = f" beside {len(left)} old tasks that had not ended" if left else ""
        if outcome.done:
            return Result.done(f"{unit.name} was stopped and started{beside}", job="done", **known)
        return self._judge(site, pid1, unit, outcome, known)

    def _wait_for_leftovers(self, site: Site, control_group: str) -> frozenset[int]:
        """Return the ids of tasks that outlived the stop by `_LEFTOVER_WAIT`."""
        waited = timedelta()
        while (left := _stuck.pids(site, control_group)) and waited < _LEFTOVER_WAIT:
            site.wait(site.clock.sleep(_stuck.SAMPLE_GAP), deadline=_stuck.SAMPLE_GAP + _NOTE)
            waited += _stuck.SAMPLE_GAP
        return left

    def _note_phase(self, request: Request, site: Site, phase: str) -> None:
        """Record the phase; once the unit is down, going on matters more than the record of it."""
        try:
            site.wait(site.note(request, phase=phase), deadline=_NOTE)
        except TimeoutError:
            return


def _stop_time(unit: UnitState) -> timedelta:
    return min(unit.timeout_stop, _STOP_CAP) + _STOP_SLACK


def _asked(ask: Callable[[], JobOutcome]) -> JobOutcome:
    """Ask for the job; an error after the asking is an outcome, because the job may be under way."""
    try:
        return ask()
    except SystemdError as error:
        return JobOutcome(result=error.kind, why=str(error))


def _unkillable(stuck: tuple[_stuck.StuckTask, ...], told: str, known: Mapping[str, Any]) -> Result:
    first = stuck[0]
    return Result.failed(
        f"{_stuck.words(stuck)}; {told}",
        unkillable=True,
        pid=first.pid,
        comm=first.comm,
        wchan=first.wchan,
        **known,
    )


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(Restart)
