"""The probe over a real child, the real binding and a fake driver library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import fakenvml
from bandog import Fact, Finding, GpuLook, Resident, Unknown, subjects
from bandog.host.child import Children
from bandog.host.resident import Resident as LivingResident
from bandog.testing import FakeHost, FakeSite
from bandog_plugins.detectors.gpu import Gpu
from bandog_plugins.gpu.rounds import Rounds

ROUND = timedelta(seconds=10)


@dataclass
class LivingSite(FakeSite):
    """A fake site whose resident programs are real ones."""

    made: Children = field(default_factory=lambda: Children(term_grace=timedelta(milliseconds=300)))
    residents: list[LivingResident] = field(default_factory=list)

    def resident(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Resident:  # type: ignore[override]
        self.residents.append(LivingResident(self.made, argv, env=env))
        return self.residents[-1]

    def close(self) -> None:
        for one in self.residents:
            one.end()
        self.made.close()


class Bench:
    """A host with fake GPUs under the probe; `poll` is one of its polls, and the 10 s to the next one."""

    def __init__(self, root: Path, library: Path, count: int = 4) -> None:
        self.state = fakenvml.State(root / "state", count)
        self.environment = self.state.env(library)
        self.site = LivingSite(FakeHost(root / "host"))
        self.rounds = Rounds(self.environment, warm=timedelta(seconds=1), cold=timedelta(seconds=20))
        self.probe = Gpu(rounds=self.rounds)
        self.answer: list[Finding | Unknown] = []

    def poll(self, times: int = 1) -> Bench:
        for _ in range(times):
            self.answer = list(self.probe.poll(self.site))
            self.site.clock.advance(ROUND)
        return self

    def look(self, place: int = 0) -> GpuLook:
        """What the newest look says of the GPU at a place of the state file."""
        look = self.site.gpus.look()
        assert look is not None
        found = look.of(self.address(place))
        assert found is not None
        return found

    def address(self, place: int) -> str:
        return subjects.pci_address(self.state.read()["gpus"][place]["pci"])

    def raised(self, kind: str, place: int | None = None) -> dict[str, Fact] | str | None:
        """The facts of a finding, "unknown", or None where it is not raised."""
        subject = subjects.HOST if place is None else subjects.gpu(self.address(place))
        for one in self.answer:
            if one.kind == kind and one.subject in (subject, "*"):
                return "unknown" if isinstance(one, Unknown) else dict(one.facts)
        return None

    @property
    def child(self) -> LivingResident:
        (one,) = self.site.residents
        return one

    def change(self, **values: Any) -> None:
        """Set values of the state file; `__` stands for a dot."""
        self.state.change({key.replace("__", "."): value for key, value in values.items()})
