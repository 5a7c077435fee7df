"""What the loaded plugins let configuration name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from bandog import Action, Facts, Finding, LogDetector, Options, Probe, Record, Request, Result, Site, Unknown
from bandog.config import build_catalogue
from bandog.config.catalogue import AGENT_KINDS


class LineOptions(Options):
    limit: int = 1


class Line(LogDetector):
    name = "line"
    Options = LineOptions
    emits: ClassVar[Mapping[str, Facts]] = {"app.broken": {"line": int}, "agent.log-blind": {"more": str}}

    def feed(self, record: Record) -> Iterable[Finding]:
        return ()


class Scan(Probe):
    name = "scan"
    emits: ClassVar[Mapping[str, Facts]] = {"app.broken": {"pid": int}}

    def poll(self, site: Site) -> Iterable[Finding | Unknown]:
        return ()


class Poke(Action):
    name = "poke"
    disruptive = False
    per_service = True
    proves = False

    def run(self, request: Request, site: Site) -> Any:
        return Result.done()


def test_facts_of_one_kind_from_several_detectors_are_joined() -> None:
    kinds = build_catalogue([Line, Scan]).kinds
    assert kinds["app.broken"] == {"line": int, "pid": int}
    assert kinds["agent.log-blind"] == {**AGENT_KINDS["agent.log-blind"], "more": str}


def test_the_agents_own_kinds_are_known_without_any_plugin() -> None:
    assert set(build_catalogue().kinds) == set(AGENT_KINDS)


def test_actions_come_with_their_traits_and_arguments() -> None:
    catalogue = build_catalogue([Line], [Poke])
    traits = catalogue.traits["poke"]
    assert (traits.disruptive, traits.per_service, traits.proves) == (False, True, False)
    assert catalogue.actions["poke"].with_model is Poke.With
    assert set(catalogue.options) == {"line", "poke"}
