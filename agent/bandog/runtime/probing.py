"""Runs each probe at its interval, in a worker under its deadline, and tells what is new.

A probe states the whole truth each time. Here it is compared with the last one: what appeared is a
finding, what is missing has cleared, what is Unknown keeps its state. A probe that overruns or
raises tells nothing and clears nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Protocol, TypeVar

from ..domain import subjects
from ..domain.model import Finding, Instant, Severity, Unknown
from ..host.site import Clock, Site
from ..plugin import Probe
from .soundness import answers_of

log = logging.getLogger(__name__)

T = TypeVar("T")

STILL = timedelta(minutes=15)
"""A state that lasts is stated again this often, so that a ladder can climb while it lasts."""
STALE_AFTER = 3
"""Rounds without an answer until the probe itself is a finding."""


class RunInWorker(Protocol):
    """`runtime.workers.Workers.run`."""

    def __call__(self, fn: Callable[[], T], *, deadline: timedelta, name: str) -> Awaitable[T]:
        """Run `fn` in a worker thread; raises when it overruns."""


@dataclasses.dataclass(slots=True)
class _Raised:
    finding: Finding
    told: Instant | None  # None: by an earlier run of the agent


class Probing:
    """The schedule of one probe and what it last said.

    `raised` holds (kind, subject, aspect) of what an earlier run of the agent left raised: what the
    probe does not name any more has cleared, what it still names is stated again. `at_work` is entered, with the
    probe's name, for the length of each poll.
    """

    def __init__(
        self,
        probe: Probe,
        site: Site,
        clock: Clock,
        run: RunInWorker,
        found: Callable[[Finding], None],
        raised: Iterable[tuple[str, str, str]] = (),
        *,
        at_work: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.probe = probe
        self.last_answer: Instant | None = None
        self.misses = 0
        self.why = ""
        self._site = site
        self._clock = clock
        self._run = run
        self._found = found
        self._at_work = at_work or nullcontext
        now = clock.now()
        left = (
            Finding(kind=kind, subject=subject, aspect=aspect, severity=Severity.INFO, at=now, detector=probe.name)
            for kind, subject, aspect in raised
            if kind in probe.emits
        )
        self._raised = {one.key(): _Raised(one, None) for one in left}

    async def loop(self) -> None:
        """Poll for ever, spread a little so that probes do not fire together."""
        every = self.probe.every
        await self._clock.sleep(every * random.random() * 0.5)  # jitter, not a secret
        while True:
            await self.round()
            await self._clock.sleep(every)

    async def round(self) -> None:
        """Poll once and tell the difference."""
        try:
            answer = await self._run(self._poll, deadline=self.probe.deadline, name=self.probe.name)
        except asyncio.CancelledError:
            raise
        # The second door again: a plugin at work, this time in a worker.
        except Exception as error:
            self._missed(f"{type(error).__name__}: {error}")
            return
        self._answered()
        self._compare(answer)

    def _poll(self) -> list[Finding | Unknown]:
        with self._at_work(self.probe.name):
            return answers_of(self.probe.poll(self._site))

    def _missed(self, why: str) -> None:
        self.misses += 1
        self.why = why
        log.warning("probe gave no answer probe=%s misses=%d why=%s", self.probe.name, self.misses, why)
        if self.misses == STALE_AFTER:
            self._agent(raised=True)

    def _answered(self) -> None:
        if self.misses >= STALE_AFTER:
            self._agent(raised=False)
        self.misses = 0
        self.why = ""
        self.last_answer = self._clock.now()

    def _agent(self, *, raised: bool) -> None:
        self._found(
            Finding(
                kind="agent.probe-stale",
                subject=subjects.plugin(self.probe.name),
                severity=Severity.WARNING,
                at=self._clock.now(),
                detector="agent",
                raised=raised,
                live=True,
                facts={"probe": self.probe.name, "seconds": round(self.probe.every.total_seconds() * self.misses)},
            )
        )

    def _compare(self, answer: Iterable[Finding | Unknown]) -> None:
        now = self._clock.now()
        seen: set[tuple[str, str]] = set()
        unknown: list[Unknown] = []
        for item in answer:
            if isinstance(item, Unknown):
                unknown.append(item)
                continue
            seen.add(item.key())
            old = self._raised.get(item.key())
            if old is None or _is_news(item, old, now):
                finding = dataclasses.replace(item, detector=item.detector or self.probe.name, live=True)
                self._raised[item.key()] = _Raised(finding, now)
                self._found(finding)
        for key, old in list(self._raised.items()):
            if key in seen or any(one.kind == key[0] and one.subject in ("*", old.finding.subject) for one in unknown):
                continue
            del self._raised[key]
            self._found(dataclasses.replace(old.finding, raised=False, at=now, live=True))


def _is_news(item: Finding, old: _Raised, now: Instant) -> bool:
    return old.told is None or now.since(old.told) >= STILL or item.severity is not old.finding.severity
