"""What the agent states about itself, as findings like any other: policies decide who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Protocol

from ..domain import subjects
from ..domain.model import Severity

OF_THE_PROCESS = ("agent.workers-stuck", "agent.store-stuck", "agent.probe-stale", "agent.plugin-broken")
"""States of the running agent: what an earlier process left raised has cleared with its end."""


class Say(Protocol):
    """`Pipeline.say`."""

    def __call__(
        self, kind: str, subject: str, severity: Severity, *, raised: bool = True, **facts: str | int | None
    ) -> None:
        """State a fact about the agent."""


class BrokenPlugin(Protocol):
    """`pluginloader.PluginReport`, as far as it matters here."""

    @property
    def name(self) -> str:
        """The plugin's name."""

    @property
    def why(self) -> str:
        """Why it does not work."""


class SelfReport:
    """Turns what the parts call back with into findings. `pipeline_say` is asked for at each call."""

    def __init__(self, pipeline_say: Callable[[], Say]) -> None:
        self._pipeline_say = pipeline_say

    def _agent(self, kind: str, severity: Severity, *, raised: bool = True, **facts: str | int | None) -> None:
        self._pipeline_say()(kind, subjects.AGENT, severity, raised=raised, **facts)

    def workers_stuck(self, names: tuple[str, ...]) -> None:
        """Work overran its deadline and goes on; `names` are all that do."""
        self._agent("agent.workers-stuck", Severity.ERROR, count=len(names), why=", ".join(names))

    def workers_free(self) -> None:
        """The last of it has ended."""
        self._agent("agent.workers-stuck", Severity.ERROR, raised=False, count=0)

    def store_stuck(self, stuck: timedelta, why: str) -> None:
        """Nothing has become durable for so long."""
        self._agent("agent.store-stuck", Severity.CRITICAL, seconds=round(stuck.total_seconds()), why=why)

    def store_recovered(self, stuck: timedelta) -> None:
        """The disk takes rows again."""
        self._agent("agent.store-stuck", Severity.CRITICAL, raised=False, seconds=round(stuck.total_seconds()))

    def tripped(self, why: str) -> None:
        """The breaker has tripped."""
        self._agent("agent.breaker-tripped", Severity.CRITICAL, why=why)

    def rearmed(self) -> None:
        """A person has armed the agent again."""
        for kind in ("agent.breaker-tripped", "agent.state-lost"):
            self._agent(kind, Severity.CRITICAL, raised=False)

    def state_lost(self, why: str) -> None:
        """The database is gone, or was not readable."""
        self._agent("agent.state-lost", Severity.CRITICAL, why=why)

    def part_ended(self, name: str, why: str) -> None:
        """What shall go on for ever has ended by a fault of bandog."""
        self._pipeline_say()("agent.plugin-broken", subjects.plugin(name), Severity.ERROR, plugin=name, why=why)

    def configuration(self, errors: Iterable[object]) -> None:
        """The configuration was read; `errors` are its mistakes."""
        found = [str(one) for one in errors]
        if found:
            self._agent("agent.config-broken", Severity.ERROR, count=len(found), first=found[0])
        else:
            self._agent("agent.config-broken", Severity.ERROR, raised=False, count=0)

    def plugins(self, broken: Iterable[BrokenPlugin], raised: Iterable[tuple[str, str, str]]) -> None:
        """At a start: name what does not load, and clear what an earlier process had `raised` of itself."""
        say = self._pipeline_say()
        named = {subjects.plugin(one.name): one for one in broken}
        for subject, report in named.items():
            say("agent.plugin-broken", subject, Severity.ERROR, plugin=report.name, why=report.why)
        for kind, subject, _ in raised:
            if kind in OF_THE_PROCESS and subject not in named:
                say(kind, subject, Severity.INFO, raised=False)
