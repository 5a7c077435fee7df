"""Services whose readiness and canaries a test scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from ..host.site import CanaryAnswer, Readiness
from ..services.registry import Registry, Service

T = TypeVar("T")


class FakeServices:
    """The services of a test; `readiness` holds what `ready` answers, `canaries` what `canary` does.

    Unscripted, each is ready and its canary gets 8 tokens, or says that there is none.
    """

    def __init__(self, *services: Service) -> None:
        self.registry = Registry(services)
        self.readiness: dict[str, Readiness | Sequence[Readiness]] = {}
        self.canaries: dict[str, CanaryAnswer | Sequence[CanaryAnswer]] = {}

    def names(self) -> tuple[str, ...]:
        """Return every name in start order."""
        return tuple(service.name for service in self.registry)

    def get(self, name: str) -> Service:
        """Return the service; KeyError if there is none."""
        return self.registry.get(name)

    def ready(self, name: str) -> Readiness:
        """Answer as scripted: one answer for ever, or a sequence of which the last one stays."""
        return _scripted(self.readiness, name, Readiness(ready=True, why="scripted"))

    def canary(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> CanaryAnswer:
        """Answer as scripted: one answer for ever, or a sequence of which the last one stays."""
        if name not in self.canaries and not self.registry.get(name).canary:
            return CanaryAnswer(ok=None, why="no canary is configured")
        return _scripted(self.canaries, name, CanaryAnswer(ok=True, why="scripted", model="scripted", tokens=8))

    def serves(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> Readiness:
        """Answer `ready`, and where it is ready and has a canary, what that says."""
        ready = self.ready(name)
        if ready.ready is not True or not (name in self.canaries or self.registry.get(name).canary):
            return ready
        answer = self.canary(name, deadline=deadline)
        return Readiness(ready=answer.ok, why=f"{ready.why}; canary: {answer.why}")


def _scripted(answers: dict[str, T | Sequence[T]], name: str, default: T) -> T:
    """Return the next answer of a script; the last one of a sequence stays."""
    answer = answers.get(name, default)
    if not isinstance(answer, Sequence):
        return answer
    first, *rest = answer
    if rest:
        answers[name] = rest
    return first
