"""The one job that brings a unit up anew, and what its end means.

It is a single job of systemd's, because a stop that we follow with a start leaves the service down if
we die between them. Only for `KillMode=process|none`, where that job would start the unit beside its
old processes, do we stop and start ourselves, with the state between on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from bandog import JobOutcome, Request, Result, Site, SystemdError, UnitState

from . import _stuck
from ._pid1 import Pid1

NOTE = timedelta(seconds=10)
"""How long a note may take to be committed."""
# A stop may take TimeoutStopSec for SIGTERM; past this we stop waiting and let the proof watch.
_STOP_CAP = timedelta(minutes=3)
_STOP_SLACK = timedelta(seconds=15)
_START_WAIT = timedelta(seconds=60)
# nvidia-resiliency-ext waits up to 50 s for GPU memory to come back; processes go sooner than that.
_LEFTOVER_WAIT = timedelta(seconds=30)


def renew(request: Request, site: Site, pid1: Pid1, unit: UnitState, known: Mapping[str, Any]) -> Result:
    """Bring the unit up anew; `known` are facts that the result carries in any case. For a worker."""
    if unit.kill_mode in ("process", "none"):
        return _stop_and_start(request, site, pid1, unit, known)
    return _restart(site, pid1, unit, known)


def _restart(site: Site, pid1: Pid1, unit: UnitState, known: Mapping[str, Any]) -> Result:
    if unit.result == "start-limit-hit":
        # Part of this one counted restart: without it systemd would refuse the job.
        pid1.reset_failed(unit.name)
    outcome = asked(lambda: pid1.restart(unit.name, deadline=stop_time(unit)))
    if outcome.done:
        return Result.done(f"{unit.name} was restarted", job=outcome.result, **known)
    return _judge(site, pid1, unit, outcome, known)


def _judge(site: Site, pid1: Pid1, unit: UnitState, outcome: JobOutcome, known: Mapping[str, Any]) -> Result:
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
        return unkillable(stuck, told, known)
    if now.active_state == "failed":
        return Result.failed(f"{told}; {unit.name} failed: {now.result}", result=now.result, **known)
    if now.active_state == "inactive" and now.job is None:
        return Result.failed(f"{told}; {unit.name} is down", **known)
    return Result.done(f"{told}; {unit.name} is {now.active_state}", uncertain=True, **known)


def _stop_and_start(request: Request, site: Site, pid1: Pid1, unit: UnitState, known: Mapping[str, Any]) -> Result:
    """For KillMode=process|none: give what systemd leaves behind time to end before the start."""
    try:
        site.wait(site.note(request, phase="stopping"), deadline=NOTE)
    except TimeoutError:
        return Result.retry("the stop could not be recorded, so nothing was done", **known)
    outcome = asked(lambda: pid1.stop(unit.name, deadline=stop_time(unit)))
    if not outcome.done and outcome.result != "timeout":
        return _judge(site, pid1, unit, outcome, known)
    _note_phase(request, site, "stopped")
    left = _wait_for_leftovers(site, unit.control_group)
    _note_phase(request, site, "starting")
    outcome = asked(lambda: pid1.start(unit.name, deadline=_START_WAIT))
    known = {**known, "left": len(left)} if left else known
    stuck = _stuck.stuck_tasks(site, unit.control_group) if left else ()
    stuck = tuple(one for one in stuck if one.pid in left)
    if stuck:
        return unkillable(stuck, f"{unit.name} was started beside it", known)
    beside = f" beside {len(left)} old tasks that had not ended" if left else ""
    if outcome.done:
        return Result.done(f"{unit.name} was stopped and started{beside}", job="done", **known)
    return _judge(site, pid1, unit, outcome, known)


def _wait_for_leftovers(site: Site, control_group: str) -> frozenset[int]:
    """Return the ids of tasks that outlived the stop by `_LEFTOVER_WAIT`."""
    waited = timedelta()
    while (left := _stuck.pids(site, control_group)) and waited < _LEFTOVER_WAIT:
        site.wait(site.clock.sleep(_stuck.SAMPLE_GAP), deadline=_stuck.SAMPLE_GAP + NOTE)
        waited += _stuck.SAMPLE_GAP
    return left


def _note_phase(request: Request, site: Site, phase: str) -> None:
    """Record the phase; once the unit is down, going on matters more than the record of it."""
    try:
        site.wait(site.note(request, phase=phase), deadline=NOTE)
    except TimeoutError:
        return


def stop_time(unit: UnitState) -> timedelta:
    """Return how long to wait for a stop of the unit."""
    return min(unit.timeout_stop, _STOP_CAP) + _STOP_SLACK


def asked(ask: Callable[[], JobOutcome]) -> JobOutcome:
    """Ask for the job; an error after the asking is an outcome, because the job may be under way."""
    try:
        return ask()
    except SystemdError as error:
        return JobOutcome(result=error.kind, why=str(error))


def unkillable(stuck: tuple[_stuck.StuckTask, ...], told: str, known: Mapping[str, Any]) -> Result:
    """Return the failure that tasks which no signal reaches make of a step."""
    first = stuck[0]
    return Result.failed(
        f"{_stuck.words(stuck)}; {told}",
        unkillable=True,
        pid=first.pid,
        comm=first.comm,
        wchan=first.wchan,
        **known,
    )
