"""`relaunch`: start a service anew on the largest valid set of healthy GPUs, and prove that it holds just those.

The unit reads one environment file of ours at each start; writing it and one restart are the whole act, without a
daemon-reload, which cuts running GPU containers off their devices. Everything that speaks against it is looked at
before: nothing is written and no unit touched until a profile is satisfied and its cards answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic import Field, field_validator

from bandog import (
    Action,
    Duration,
    Look,
    Options,
    Proof,
    Request,
    Result,
    ResultState,
    Site,
    SystemdError,
    UnitState,
    hookimpl,
    overrides,
    profiles,
    subjects,
    unfit,
)

from . import _held, _job, _preflight, _proof, _stuck, _unit
from ._owner import Owner, strangers
from ._pid1 import Pid1
from ._relaunched import Proofs

EXCLUDED = "excluded"
FABRIC_XIDS = frozenset(range(144, 151))
"""Errors of the fifth NVLink generation: on NVSwitch systems the fabric's, and no card is the culprit
(NVIDIA/open-gpu-kernel-modules#1355)."""


class RelaunchOptions(Options):
    """`environment` of the programs that ask the driver, as for the probe `gpu`: `LD_LIBRARY_PATH` where its
    libraries lie in a folder that the loader does not search."""

    environment: Mapping[str, str] = Field(default_factory=dict)


class RelaunchWith(Options):
    """`without`: cards to leave out and keep out (`$subject`, a PCI address, a UUID, a list), or `excluded`: those
    that are kept out already. `env`: further variables. `settle`: how long it must stay ready to be proved.
    `timeout`: to ready, else the service's own. `canary: false` asks no completion of it."""

    without: tuple[str, ...] = (EXCLUDED,)
    env: Mapping[str, str] = Field(default_factory=dict)
    settle: Duration = timedelta(seconds=10)
    timeout: Duration | None = None
    canary: bool = True

    @field_validator("without", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("env", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: str(one) if type(one) is int else one for name, one in value.items()}

    @field_validator("env")
    @classmethod
    def _settable(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        overrides.check(value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a relaunch is to put in force: `choice` is None where only variables are set."""

    choice: profiles.Choice | None
    without: tuple[str, ...]
    remarks: tuple[str, ...] = ()


class Relaunch(Action):
    """Relaunch the unit of one service; see the module."""

    name = "relaunch"
    Options = RelaunchOptions
    With = RelaunchWith
    per_service = True
    run_deadline = timedelta(minutes=10)
    options: RelaunchOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._proofs = Proofs(self.options.environment)

    # --- the act -------------------------------------------------------------------------------

    def run(self, request: Request, site: Site) -> Result:
        """Look, choose, try, write, restart; each step may end it, and until the fourth nothing has changed."""
        if request.service is None:
            return Result.skipped("no service of ours uses it")
        try:
            service = site.services.get(request.service)
        except KeyError:
            return Result.skipped(f"there is no service {request.service} any more")
        pid1 = Pid1(site)
        try:
            unit = pid1.unit(service.unit)
            return self._act(request, site, pid1, unit, service)
        except SystemdError as error:
            return Result.retry(f"systemd did not answer: {error}", unit=service.unit)

    def _act(self, request: Request, site: Site, pid1: Pid1, unit: UnitState, service: Any) -> Result:
        wanted = self._with(request)
        known = {"unit": unit.name, "before": unit.invocation_id}
        refused = _unit.refusal(unit, site) or _unprepared(unit, service, wanted, site)
        if refused is not None:
            return Result.skipped(refused, **known)
        stuck = _stuck.stuck_tasks(site, unit.control_group)
        if stuck:
            return _job.unkillable(stuck, f"{unit.name} was not touched", known)
        if unit.job is not None:
            return Result.retry(f"systemd has a job for {unit.name} already", **known)
        named = _named(request, wanted, site)
        if isinstance(named, str):
            return Result.skipped(named, **known)
        remarks = _keep_out(request, named, site)
        try:
            plan = self._plan(site, unit, Owner(site, pid1, unit), service, named, as_it_is=not wanted.env)
        except _preflight.Silent as error:
            return Result.failed(f"{error}; {unit.name} was not touched", **known)
        if remarks:  # a card that the inventory did not know before that look
            remarks = _keep_out(request, named, site)
        if isinstance(plan, overrides.Override):
            told = f"{unit.name} runs {plan.where} already; nothing to do but prove it"
            goal = {"gpus": list(plan.gpus), "without": list(plan.without), "visible": ""}
            return Result.done(told, **{**known, "before": "", **goal})
        if isinstance(plan, profiles.Refusal):
            why = f"{plan.why}; {unit.name} was not touched"
            return Result.failed(why, needs=plan.needs, has=plan.has, **known)
        return self._put(request, site, pid1, unit, service, plan, {**known, "remarks": [*remarks, *plan.remarks]})

    def _plan(
        self, site: Site, unit: UnitState, owner: Owner, service: Any, named: tuple[str, ...], *, as_it_is: bool
    ) -> _Plan | profiles.Refusal | overrides.Override:
        """Choose the cards by a fresh look and try them; the override in force, where it will do. Raises Silent."""
        if not service.profiles:
            return _Plan(choice=None, without=())
        look = _preflight.look(site, self.options.environment)
        standing = overrides.in_force(site.paths.run, unit.name)
        if as_it_is and standing is not None and _holds(site, unit, owner, look, standing, named):
            return standing
        bad = {gpu.address: f"cannot be used: {why}" for gpu in look.gpus if (why := unfit(gpu))}
        taken = {
            gpu.address: f"is held by {', '.join(who)}" for gpu in look.gpus if (who := strangers(site, gpu, [owner]))
        }
        reasons = dict.fromkeys(named, "is left out") | profiles.reasons_of(look, site.gpus.known(), bad)
        free = [gpu for gpu in site.gpus.usable() if gpu.address not in taken]
        choice = profiles.choose(service, look, free, without=named, reasons={**taken, **reasons})
        if isinstance(choice, profiles.Refusal):
            return choice
        tried = _preflight.trial(site, choice.addresses, self.options.environment)
        if tried.order is not None:
            choice = profiles.numbered(choice, tried.order)
        cards = {one.slot: one.uuid for one in site.gpus.known()} | {one.address: one.uuid for one in look.gpus}
        out = [at for at in {*reasons, *taken} if profiles.is_of(service, at, cards.get(at, ""))]
        without = sorted(out, key=subjects.pci_order)
        return _Plan(choice=choice, without=tuple(without), remarks=(tried.remark,) if tried.remark else ())

    def _put(
        self,
        request: Request,
        site: Site,
        pid1: Pid1,
        unit: UnitState,
        service: Any,
        plan: _Plan,
        known: Mapping[str, Any],
    ) -> Result:
        choice = plan.choice
        goal: dict[str, Any] = {"without": list(plan.without), "gpus": [], "visible": ""}
        if choice is not None:
            goal |= {"gpus": list(choice.addresses), "visible": choice.visible, "profile": choice.place}
        try:
            site.wait(site.note(request, **goal), deadline=_job.NOTE)
        except TimeoutError:
            return Result.retry("what was to be put in force could not be recorded, so nothing was done", **known)
        try:
            override = overrides.put(
                site.paths.run,
                service,
                choice,
                without=plan.without,
                at=site.clock.now(),
                incident=request.incident,
                env=self._with(request).env,
            )
        except (OSError, ValueError) as error:
            return Result.failed(f"the environment of {unit.name} could not be written: {error}", **known)
        result = _job.renew(request, site, pid1, unit, {**known, **goal})
        where = f" {override.where}" if result.state is ResultState.DONE else ""
        return replace(result, why="; ".join([result.why + where, *known["remarks"]]))

    # --- the proof -----------------------------------------------------------------------------

    def prove(self, request: Request, result: Result, site: Site) -> Proof:
        """Active since the act, ready, on the wanted GPUs and no other, and answering its canary; for `settle`."""
        wanted = self._with(request)
        return self._proofs.prove(request, result, site, settle=wanted.settle, canary=wanted.canary)

    def proof_time(self, request: Request, site: Site) -> timedelta:
        """The service's time to ready plus `settle`, and what the looks at the driver may take."""
        wanted = self._with(request)
        ready = _proof.time_to_ready(request, site, wanted=wanted.timeout, otherwise=self.proof_deadline)
        return ready + wanted.settle + timedelta(minutes=2)

    def _with(self, request: Request) -> RelaunchWith:
        return RelaunchWith.model_validate(dict(request.with_))


def _holds(
    site: Site, unit: UnitState, owner: Owner, look: Look, standing: overrides.Override, named: tuple[str, ...]
) -> bool:
    """Return whether the unit runs on healthy cards without the named ones already: one fault has many findings."""
    usable = {one.address for one in site.gpus.usable()} - set(named)
    if not standing.gpus or not set(standing.gpus) <= usable or site.services.ready(standing.service).ready is not True:
        return False
    return unit.active_state == "active" and _held.judge(site, owner, unit, look, standing.gpus, "").right is True


def _unprepared(unit: UnitState, service: Any, wanted: RelaunchWith, site: Site) -> str | None:
    """Return why the service cannot be relaunched at all, or None."""
    if not service.profiles and (not wanted.env or wanted.without != (EXCLUDED,)):
        return f"{service.name} has no profiles, so that it keeps its GPUs"
    if str(overrides.path_of(site.paths.run, unit.name)) not in unit.environment_files:
        return f"{unit.name} does not read bandog's environment file: run bandog adopt {unit.name}"
    return None


def _named(request: Request, wanted: RelaunchWith, site: Site) -> tuple[str, ...] | str:
    """Return the addresses that the step leaves out, or why it cannot name a card."""
    named = []
    for word in wanted.without:
        if word == EXCLUDED:
            continue
        if request.facts.get("xid") in FABRIC_XIDS or request.facts.get("action") == "reset_fabric":
            return "it is a fault of the whole fabric, and leaving one card out would not help"
        text = subjects.id_of(word) if subjects.type_of(word) == "gpu" else word
        card = next((one for one in site.gpus.known() if one.uuid.lower() == text.lower()), None)
        if card is not None:
            named.append(card.slot)
            continue
        try:
            named.append(subjects.pci_address(text))
        except ValueError:
            return f"{word or 'nothing'} names no GPU"
    return tuple(named)


def _keep_out(request: Request, named: tuple[str, ...], site: Site) -> list[str]:
    """Keep the cards out from now on; a drill leaves no trace in the inventory."""
    if request.drill:
        return []
    xid = request.facts.get("xid")
    number = xid if type(xid) is int else None
    reason = f"Xid {number}" if number is not None else request.kind
    remarks = []
    for address in named:
        try:
            site.gpus.exclude(
                address,
                reason=f"{reason} (policy {request.policy})",
                by=f"incident {request.incident}",
                kind=request.kind,
                xid=number,
                incident=request.incident,
            )
        except LookupError as error:
            remarks.append(f"it is left out of this start only: {error}")
    return remarks


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(Relaunch)
