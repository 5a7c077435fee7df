"""Probing: what a probe's answers mean, one after the other and across a restart of the agent."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from bandog import Facts, Finding, Probe, Severity, Site, Unknown
from bandog.runtime.probing import STALE_AFTER, STILL, Probing
from bandog.testing import FakeHost, FakeSite

T = TypeVar("T")
KIND = "test.hot"


class Thermometer(Probe):
    """Answers as the test says; an exception is raised."""

    name = "thermometer"
    emits: ClassVar[Mapping[str, Facts]] = {KIND: {"degrees": int}}

    def __init__(self) -> None:
        super().__init__()
        self.answer: list[Finding | Unknown] | Exception = []

    def poll(self, site: Site) -> Iterable[Finding | Unknown]:
        """Return the answer."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Rig:
    """A probe and everything that was found by it."""

    def __init__(self, root: Path, raised: Iterable[tuple[str, str, str]] = ()) -> None:
        self.site = FakeSite(FakeHost(root))
        self.probe = Thermometer()
        self.found: list[Finding] = []
        self.probing = Probing(self.probe, self.site, self.site.clock, self._run, self.found.append, raised)

    async def _run(self, fn: Callable[[], T], *, deadline: timedelta, name: str) -> T:
        return fn()

    def poll(self, *answer: Finding | Unknown | Exception) -> list[tuple[str, bool]]:
        """Let the probe answer; return (key's subject, raised) of what was found."""
        self.found.clear()
        first = answer[0] if answer else None
        self.probe.answer = (
            first if isinstance(first, Exception) else [one for one in answer if not isinstance(one, Exception)]
        )
        asyncio.run(self.probing.round())
        return [(one.key()[1], one.raised) for one in self.found]

    def hot(self, subject: str = "gpu:a", severity: Severity = Severity.ERROR, aspect: str = "") -> Finding:
        """A finding of this moment."""
        return Finding(kind=KIND, subject=subject, severity=severity, at=self.site.clock.now(), aspect=aspect)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A probe without a past."""
    return Rig(tmp_path)


def test_what_appears_is_found_once_and_what_is_missing_has_cleared(rig: Rig) -> None:
    assert rig.poll(rig.hot()) == [("gpu:a", True)]
    assert rig.found[0].live
    assert rig.found[0].detector == "thermometer"
    assert rig.poll(rig.hot()) == []
    assert rig.poll(rig.hot("gpu:b")) == [("gpu:b", True), ("gpu:a", False)]
    assert rig.poll() == [("gpu:b", False)]
    assert rig.poll() == []


@pytest.mark.parametrize("subject", ["gpu:a", "*"])
def test_what_is_unknown_stays_as_it_was(rig: Rig, subject: str) -> None:
    rig.poll(rig.hot())
    assert rig.poll(Unknown(kind=KIND, subject=subject)) == []
    assert rig.poll(Unknown(kind=KIND, subject="gpu:b")) == [("gpu:a", False)]


def test_a_state_that_lasts_or_worsens_is_stated_again(rig: Rig) -> None:
    rig.poll(rig.hot())
    assert rig.poll(rig.hot(severity=Severity.CRITICAL)) == [("gpu:a", True)]
    rig.site.clock.advance(STILL)
    assert rig.poll(rig.hot(severity=Severity.CRITICAL)) == [("gpu:a", True)]


def test_a_probe_that_gives_no_answer_clears_nothing_and_is_told_of(rig: Rig) -> None:
    rig.poll(rig.hot())
    for _ in range(STALE_AFTER - 1):
        assert rig.poll(OSError("gone")) == []
    assert rig.poll(OSError("gone")) == [("plugin:thermometer", True)]
    assert rig.poll(OSError("gone")) == []
    assert rig.probing.why == "OSError: gone"
    assert rig.poll(rig.hot()) == [("plugin:thermometer", False)]


def test_what_an_earlier_run_left_raised_clears_when_it_is_gone(tmp_path: Path) -> None:
    left = [(KIND, "gpu:a", ""), (KIND, "task:x", "17"), ("nvidia.xid", "gpu:a", "")]
    rig = Rig(tmp_path, left)
    assert rig.poll(Unknown(kind=KIND, subject="task:x")) == [("gpu:a", False)]
    assert rig.found[0].live
    assert rig.poll() == [("task:x#17", False)]
    assert (rig.found[0].subject, rig.found[0].aspect) == ("task:x", "17")


def test_what_an_earlier_run_left_raised_and_is_still_there_is_stated_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [(KIND, "gpu:a", "")])
    assert rig.poll(rig.hot()) == [("gpu:a", True)]
    assert rig.poll(rig.hot()) == []
    assert rig.poll() == [("gpu:a", False)]


def test_findings_that_say_by_whom_they_are_keep_it(rig: Rig) -> None:
    rig.poll(dataclasses.replace(rig.hot(), detector="other"))
    assert rig.found[0].detector == "other"


def test_the_loop_polls_at_the_probes_interval(rig: Rig) -> None:
    async def story() -> None:
        rig.probe.answer = [rig.hot()]
        task = asyncio.ensure_future(rig.probing.loop())
        await rig.site.clock.run(rig.probe.every * 2)
        task.cancel()

    asyncio.run(story())
    assert len(rig.found) == 1
    assert rig.probing.last_answer is not None


def test_an_answer_that_is_no_finding_is_a_miss_and_the_next_round_comes(rig: Rig) -> None:
    rig.poll(rig.hot())
    assert rig.poll(dataclasses.replace(rig.hot(), kind=["x"])) == []  # type: ignore[arg-type]  # a plugin's mistake
    assert (rig.probing.misses, "Unsound" in rig.probing.why) == (1, True)
    assert rig.poll() == [("gpu:a", False)]
    assert rig.probing.misses == 0
