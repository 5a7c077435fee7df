"""A replay uses the real engine and budgets, with the log's own time, and acts on nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bandog import Finding, Instant, LogDetector, Record, Severity
from bandog.domain.budgets import Ledger, Limits
from bandog.domain.changes import ActionTraits
from bandog.domain.engine import Engine
from bandog.domain.model import StepState
from bandog.domain.policy import Match, Policy, Step
from bandog.runtime.replaying import Moment, Replay
from bandog.services.registry import Registry, Service

START = Instant(boot_id="a" * 32, boottime=timedelta(minutes=1), utc=datetime(2026, 11, 30, tzinfo=UTC))


class Bang(LogDetector):
    """States a fault for each line with "bang"."""

    name = "bang"
    emits = {"test.bang": {}}  # noqa: RUF012  # a class attribute of the plugin interface
    needles = (b"bang",)

    def feed(self, record: Record) -> list[Finding]:
        """One finding a line."""
        return [
            Finding.of(record, kind="test.bang", subject="gpu:0000:01:00.0", severity=Severity.ERROR, burst=record.text)
        ]


def replay(mode: str, assume: StepState, *, lines: int, every: timedelta) -> tuple[Replay, list[Moment]]:
    policy = Policy(
        name="bang",
        match=Match(kinds=("test.bang",)),
        steps=tuple(Step(do="restart") for _ in range(lines)),
        quiet=timedelta(hours=1),
    )
    told: list[Moment] = []
    service = Service(name="qwen", unit="qwen.service", gpus="all")
    run = Replay(
        Engine((policy,), {"restart": ActionTraits(per_service=True)}),
        [Bang()],
        Ledger(Limits()),
        Registry((service,)),
        mode=mode,
        assume=assume,
        tell=told.append,
    )
    for number in range(lines):
        run.feed(Record(text=f"bang {number}", at=START.plus(every * number), source="text", line=number + 1))
    run.end(timedelta(hours=2))
    return run, told


def test_observe_mode_counts_what_it_would_have_done_as_shadow() -> None:
    run, told = replay("observe", StepState.PROVED, lines=2, every=timedelta(minutes=10))
    assert run.tally.would == {"restart": 2}
    assert [one.change.end for one in told if one.change.action == "restart" and one.change.end] == [
        StepState.WOULD,
        StepState.WOULD,
    ]
    assert run.now is not None
    assert all(one.used == 0 for one in run.ledger.usage(run.now))


def test_enforce_mode_with_proof_resolves_after_quiet() -> None:
    run, told = replay("enforce", StepState.PROVED, lines=1, every=timedelta())
    assert told[-1].change.what == "resolved"
    assert run.tally.would == {"restart": 1}


def test_the_service_budget_ends_a_ladder_of_restarts() -> None:
    run, told = replay("enforce", StepState.PROVED, lines=8, every=timedelta(minutes=6))
    assert run.tally.would["restart"] == 5
    assert run.tally.exhausted >= 1
    assert any(one.change.end is StepState.EXHAUSTED for one in told)


def test_each_moment_names_the_line_that_caused_it() -> None:
    _, told = replay("observe", StepState.PROVED, lines=1, every=timedelta())
    assert told[0].change.what == "opened"
    assert told[0].line == 1
