"""Turns checked models into the values of the domain."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..domain.policy import FactTest, Match, Policy, Step
from ..domain.windows import Window
from ..services.registry import Ready, Service, Start
from .models import FactRange, MainModel, Model, PolicyModel, ServiceModel
from .settings import Config, FleetLock, Heartbeat, NotifyTarget

D = TypeVar("D")


def build_policy(model: PolicyModel, *, file: str, line: int, layer: str) -> Policy:
    """Return the policy that `model` describes."""
    match = model.match
    return Policy(
        name=model.policy,
        description=model.description,
        match=Match(
            kinds=tuple(match.kind),
            subjects=tuple(match.subject),
            facts=_frozen({name: build_fact_test(test) for name, test in match.facts.items()}),
            severity=match.severity,
            count=match.count,
        ),
        severity=model.severity,
        **({} if model.quiet is None else {"quiet": model.quiet}),
        resolve=model.resolve,
        notify=tuple(model.notify),
        steps=tuple(
            Step(do=step.do, with_=_frozen(step.with_), after=step.after, limit=step.limit) for step in model.steps
        ),
        inhibits=tuple(model.inhibits),
        mode=model.mode,
        file=file,
        line=line,
        layer=layer,
    )


def build_fact_test(test: Any) -> FactTest:
    """Return the test that a scalar, a list or a `FactRange` stands for."""
    if isinstance(test, FactRange):
        return FactTest(minimum=test.min, maximum=test.max, glob=test.glob)
    return FactTest(any_of=tuple(test) if isinstance(test, list) else (test,))


def build_service(model: ServiceModel, *, file: str) -> Service:
    """Return the service that `model` describes."""
    ready = model.ready
    return Service(
        name=model.service,
        unit=model.unit,
        kind=model.kind,
        gpus=() if model.gpus is None else model.gpus,
        start=_with_set(Start(), model.start),
        ready=Ready(
            http=ready.http,
            tcp=ready.tcp,
            command=None if ready.command is None else tuple(ready.command),
            unit=bool(ready.unit),
        ),
        progress=_plain(model.progress),
        canary=_plain(model.canary),
        profiles=tuple(_plain(profile) for profile in model.profiles),
        mode=model.mode,
        file=file,
    )


def build_config(
    model: MainModel,
    *,
    plugins: Mapping[str, Mapping[str, Any] | str],
    policies: tuple[Policy, ...],
    services: tuple[Service, ...],
) -> Config:
    """Return the whole configuration."""
    return Config(
        mode=model.mode,
        notify=_frozen({name: NotifyTarget(name=name, urls=tuple(one.urls)) for name, one in model.notify.items()}),
        windows=_frozen(
            {
                name: Window(name=name, days=tuple(one.days), begin=one.from_, until=one.to, zone=one.tz)
                for name, one in model.windows.items()
            }
        ),
        budgets=_frozen(model.budgets),
        fleet_lock=None
        if model.fleet_lock is None
        else FleetLock(url=model.fleet_lock.url, group=model.fleet_lock.group, id=model.fleet_lock.id),
        plugins=_frozen(plugins),
        kubernetes=model.kubernetes,
        metrics_textfile=None if model.metrics is None else Path(model.metrics.textfile),
        heartbeat=None if model.heartbeat is None else _with_set(Heartbeat(url=model.heartbeat.url), model.heartbeat),
        log_level=model.log_level,
        policies=policies,
        services=services,
    )


def _frozen(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return types.MappingProxyType(dict(values))


def _with_set(default: D, model: Model) -> D:
    """Return `default` with what the operator wrote in `model`."""
    given = {name: getattr(model, name) for name in model.model_fields_set}
    known = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(default, **known)  # type: ignore[type-var]  # every caller passes a dataclass


def _plain(model: Model | None) -> Mapping[str, Any]:
    return _frozen({} if model is None else model.model_dump(exclude_none=True))
