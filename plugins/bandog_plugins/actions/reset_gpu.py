"""`reset-gpu`: stop what uses a card, reset it with nvidia-smi, look whether it is well, start everything again.

Off unless the main file says `plugins: {reset-gpu: {enabled: true}}`: a reset takes services down that may never have
had a fault. Whatever comes of it, what was stopped is started again, also by the proof of an agent that died between.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field

from bandog import (
    Action,
    Duration,
    Look,
    Options,
    Proof,
    Request,
    Result,
    Site,
    SystemdError,
    UnitState,
    hookimpl,
    profiles,
    subjects,
    unfit,
)

from . import _job, _owner, _preflight, _stuck, _unit
from ._owner import Owner
from ._pid1 import Pid1

# A reset of a GPU takes 2 to 10 s; an nvidia-smi that needs longer hangs in the driver.
_RESET = timedelta(seconds=120)
_START = timedelta(seconds=60)
_AGAIN = timedelta(seconds=5)
_WORDS = 300
_IN_USE = re.compile(rb"in use by|is currently being used|resetting .* is not allowed", re.IGNORECASE)


class ResetOptions(Options):
    """`enabled`: let it act. `environment` of the programs that ask the driver, as for the probe `gpu`."""

    enabled: bool = False
    environment: Mapping[str, str] = Field(default_factory=dict)


class ResetWith(Options):
    """`when: window` waits for the maintenance window of that name. `settle`: how long the services must stay ready
    to be proved. `timeout`: to ready, else their own."""

    when: Literal["now", "window"] = "now"
    window: str = "default"
    settle: Duration = timedelta(seconds=10)
    timeout: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _User:
    """A service on the card, with its unit as it stood."""

    service: Any
    unit: UnitState
    owner: Owner


class ResetGpu(Action):
    """Reset the card of the finding; see the module."""

    name = "reset-gpu"
    Options = ResetOptions
    With = ResetWith
    run_deadline = timedelta(minutes=15)
    options: ResetOptions

    def run(self, request: Request, site: Site) -> Result:
        """Look, refuse if anything speaks against it, else drain, reset, and start again."""
        try:
            address = subjects.pci_address(subjects.id_of(request.subject))
        except ValueError:
            return Result.skipped(f"{request.subject} is no GPU")
        pid1 = Pid1(site)
        try:
            look = _preflight.look(site, self.options.environment)
            gpu = look.of(address)
            if gpu is None or gpu.lost:
                return Result.skipped(f"{address} does not answer, and no reset can reach it")
            users = _users(site, pid1, look, address)
            refused = _refusal(site, users, look, address)
        except _preflight.Silent as error:
            return Result.failed(f"{error}; nothing was stopped")
        except SystemdError as error:
            return Result.retry(f"systemd did not answer: {error}")
        if refused is not None:
            return refused
        return self._drained(request, site, pid1, users, address)

    def _drained(self, request: Request, site: Site, pid1: Pid1, users: list[_User], address: str) -> Result:
        stopped = [one.unit.name for one in users]
        services = [one.service.name for one in users]
        facts: dict[str, Any] = {"gpu": address, "units": stopped, "services": services}
        try:
            site.wait(site.note(request, **facts), deadline=_job.NOTE)
        except TimeoutError:
            return Result.retry("what was to be stopped could not be recorded, so nothing was done", **facts)
        problem = ""
        try:
            for one in reversed(users):
                problem = _stop(site, pid1, one)
                if problem:
                    break
            else:
                problem = self._reset(site, address)
        finally:
            down = _start(pid1, stopped)
        if down:
            facts["down"] = down
            problem = "; ".join(part for part in (problem, f"not started again: {', '.join(down)}") if part)
        if problem:
            return Result.failed(f"{address} was not reset: {problem}" if not down else problem, **facts)
        told = f"; {', '.join(services)} stopped before and started after it" if services else ""
        return Result.done(f"{address} was reset{told}", **facts)

    def _reset(self, site: Site, address: str) -> str:
        """Reset the card and look at it; return what went wrong, "" if nothing."""
        argv = ["nvidia-smi", "--gpu-reset", "-i", address]
        outcome = site.child(argv, deadline=_RESET, env=dict(self.options.environment))
        if not outcome.ok and not outcome.timed_out and _IN_USE.search(outcome.out + outcome.err):
            # What was stopped gives its handles back a moment after its end, and a look of ours holds one too.
            site.wait(site.clock.sleep(_AGAIN), deadline=_AGAIN + _job.NOTE)
            outcome = site.child(argv, deadline=_RESET, env=dict(self.options.environment))
        if outcome.timed_out:
            stuck = ", and cannot be killed" if outcome.stuck else ""
            return f"nvidia-smi did not end within {_RESET.total_seconds():g} s{stuck}"
        if not outcome.ok:
            words = " ".join((outcome.out + b" " + outcome.err).decode("utf-8", "replace").split())[:_WORDS]
            return f"nvidia-smi ended with {outcome.code}: {words}"
        try:
            gpu = _preflight.look(site, self.options.environment).of(address)
        except _preflight.Silent as error:
            return str(error)
        return "it is not there any more" if gpu is None else unfit(gpu)

    def prove(self, request: Request, result: Result, site: Site) -> Proof:
        """The card is well in the newest look, and every service that was stopped is active and ready again."""
        notes = result.facts.get("notes")
        source = notes if result.facts.get("interrupted") and isinstance(notes, Mapping) else result.facts
        units = [str(one) for one in source.get("units", ())]
        pid1 = Pid1(site)
        try:
            states = [pid1.unit(one) for one in units]
        except SystemdError as error:
            return Proof.not_yet(f"systemd did not answer: {error}")
        owed = [one.name for one in states if one.active_state == "inactive" and one.job is None]
        if owed and result.facts.get("interrupted"):
            _start(pid1, owed)
            return Proof.not_yet(f"the start that was still owed was asked for: {', '.join(owed)}", finished=True)
        if result.facts.get("interrupted"):
            return Proof.disproved("bandog died in the middle of it; what it had stopped is started again")
        failed = [one.name for one in states if one.active_state in ("failed", "inactive") and one.job is None]
        if failed:
            return Proof.disproved(f"{', '.join(failed)} did not come up again")
        return self._serving(source, states, site, self._with(request).settle)

    @staticmethod
    def _serving(source: Mapping[str, Any], states: list[UnitState], site: Site, settle: timedelta) -> Proof:
        address = str(source.get("gpu", ""))
        look = site.gpus.look()
        gpu = look.of(address) if look is not None else None
        if gpu is not None and (why := unfit(gpu)):
            return Proof.disproved(f"{address}: {why}")
        now = site.clock.now()
        for one in states:
            up = now.since(site.clock.at_kernel_time(one.active_enter // timedelta(microseconds=1)))
            if one.active_state != "active" or up < settle:
                return Proof.not_yet(f"{one.name} is {one.active_state} since {max(up, timedelta()).seconds} s")
        for name in source.get("services", ()):
            answer = site.services.serves(str(name))
            if answer.ready is not True:
                return Proof.not_yet(f"{name} is not ready: {answer.why}")
        return Proof.proved(f"{address} is well and what uses it serves again", gpu=address)

    def proof_time(self, request: Request, site: Site) -> timedelta:
        """The longest time to ready of any service, plus `settle`."""
        wanted = self._with(request)
        times = [site.services.get(name).start.timeout for name in site.services.names()]
        return (wanted.timeout or max(times, default=self.proof_deadline)) + wanted.settle

    def _with(self, request: Request) -> ResetWith:
        return ResetWith.model_validate(dict(request.with_))


def _users(site: Site, pid1: Pid1, look: Look, address: str) -> list[_User]:
    """Return the services that may hold the card: by their `gpus:`, or as the driver tells; in start order."""
    gpu = look.of(address)
    holders = [one.pid for one in gpu.holders or ()] if gpu is not None else []
    found = []
    for name in site.services.names():
        service = site.services.get(name)
        unit = pid1.unit(service.unit)
        if unit.active_state in ("inactive", "failed") and unit.job is None:
            continue  # what is down does not hold it, and is not ours to start
        owner = Owner(site, pid1, unit)
        named = profiles.is_of(service, address, gpu.uuid if gpu is not None else "")
        if named or any(owner.owns(pid) for pid in holders):
            found.append(_User(service=service, unit=unit, owner=owner))
    return found


def _refusal(site: Site, users: list[_User], look: Look, address: str) -> Result | None:
    for one in users:
        why = _unit.refusal(one.unit, site)
        if why is not None:
            return Result.skipped(why)
        stuck = _stuck.stuck_tasks(site, one.unit.control_group)
        if stuck:
            return _job.unkillable(stuck, "nothing was stopped", {"unit": one.unit.name})
        if one.unit.job is not None:
            return Result.retry(f"systemd has a job for {one.unit.name} already")
    gpu = look.of(address)
    if gpu is not None:
        strangers = _owner.strangers(site, gpu, [one.owner for one in users])
        if strangers:
            return Result.skipped(f"{address} is held by {', '.join(strangers)}, which is no service of ours")
    return None


def _stop(site: Site, pid1: Pid1, user: _User) -> str:
    """Stop a service; return why it is not down, "" if it is."""
    outcome = _job.asked(lambda: pid1.stop(user.unit.name, deadline=_job.stop_time(user.unit)))
    if outcome.done:
        return ""
    stuck = _stuck.stuck_tasks(site, user.unit.control_group)
    words = f"; {_stuck.words(stuck)}" if stuck else ""
    return f"{user.unit.name} could not be stopped: {outcome.result} {outcome.why}".rstrip() + words


def _start(pid1: Pid1, units: list[str]) -> list[str]:
    """Ask for the start of each unit and return those that did not begin to come up."""
    down = []
    for name in units:
        outcome = _job.asked(functools.partial(pid1.start, name, deadline=_START))
        if not outcome.done and outcome.result != "timeout":
            down.append(name)
    return down


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(ResetGpu)
