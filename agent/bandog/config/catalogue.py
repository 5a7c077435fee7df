"""What configuration may name: kinds with their facts, actions, plugins; plain data about what is loaded."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ..domain.changes import ActionTraits
from ..domain.model import EMPTY, Facts
from ..plugin import Action, LogDetector, Options, Probe

AGENT_KINDS: Mapping[str, Facts] = types.MappingProxyType(
    {
        "agent.kmsg-lost": {"lost": int, "recovered": int},
        "agent.log-blind": {"source": str, "why": str},
        "agent.plugin-broken": {"plugin": str, "why": str},
        "agent.config-broken": {"count": int, "first": str},
        "agent.state-lost": {"why": str},
        "agent.store-stuck": {"seconds": int, "why": str},
        "agent.workers-stuck": {"count": int, "why": str},
        "agent.probe-stale": {"probe": str, "seconds": int},
        "agent.breaker-tripped": {"why": str},
    }
)
"""The kinds that the agent states about itself (DESIGN section 8), whatever plugins are loaded."""

CARD_FACTS: Facts = types.MappingProxyType(
    {"uuid": str, "serial": str, "part_number": str, "history": str, "on_probation": bool}
)
"""What the inventory adds to a finding about a GPU that it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """What configuration must know of an action."""

    with_model: type[BaseModel] = Options
    traits: ActionTraits = field(default_factory=ActionTraits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCatalogue:
    """Everything that may be named.

    `kinds` maps a kind to its facts and their types, `actions` a step's `do` to its spec, `options`
    a detector's, probe's or action's name to its options. `plugins` are further names that may be
    switched off (a plugin that provides several of them). While `broken` names plugins that did
    not load, what they may have provided is not held against the configuration: unknown names
    become warnings, so that a broken plugin never stops the agent.
    """

    kinds: Mapping[str, Facts] = field(default_factory=lambda: AGENT_KINDS)
    actions: Mapping[str, ActionSpec] = field(default_factory=lambda: EMPTY)
    options: Mapping[str, type[BaseModel]] = field(default_factory=lambda: EMPTY)
    plugins: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def traits(self) -> dict[str, ActionTraits]:
        """What the engine must know of each action."""
        return {name: spec.traits for name, spec in self.actions.items()}


def build_catalogue(
    detectors: Iterable[type[LogDetector] | type[Probe]] = (),
    actions: Iterable[type[Action]] = (),
    *,
    plugins: Iterable[str] = (),
    broken: Iterable[str] = (),
) -> PluginCatalogue:
    """Return the catalogue of loaded classes; facts of one kind from several detectors are joined."""
    kinds: dict[str, dict[str, Any]] = {kind: dict(facts) for kind, facts in AGENT_KINDS.items()}
    options: dict[str, type[BaseModel]] = {}
    for detector in detectors:
        options[detector.name] = detector.Options
        for kind, facts in detector.emits.items():
            papers = CARD_FACTS if kind == "nvidia.xid" or kind.startswith("gpu.") else EMPTY
            kinds.setdefault(kind, dict(papers)).update(facts)
    specs = {}
    for action in actions:
        options.setdefault(action.name, action.Options)
        traits = ActionTraits(disruptive=action.disruptive, per_service=action.per_service, proves=action.proves)
        specs[action.name] = ActionSpec(with_model=action.With, traits=traits)
    return PluginCatalogue(kinds=kinds, actions=specs, options=options, plugins=tuple(plugins), broken=tuple(broken))
