"""The executor: nothing disruptive without leave and record, nothing twice, every request to an end."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bandog import Action, Incident, Instant, Proof, Request, Result, Site
from bandog.domain.budgets import Ledger, Limits
from bandog.domain.changes import StepReport
from bandog.domain.model import StepState
from bandog.domain.policy import Rate
from bandog.runtime.admission import BUDGETS_KEY, past
from bandog.runtime.executor import Executor
from bandog.runtime.slot import share_gpus
from bandog.runtime.workers import Workers
from bandog.services.registry import Registry, Service
from bandog.store import Store
from bandog.store.rows import Saved, SavedRequest
from bandog.testing import FakeClock, FakeHost, FakeServices, FakeSite
from samples import NOW, incident, request

S = StepState


class Restart(Action):
    """An action whose every call a test decides."""

    name = "restart"
    per_service = True
    run_deadline = timedelta(seconds=5)

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []
        self.proofs: list[Result] = []
        self.results: list[Result | BaseException] = []
        self.answers: list[Proof | BaseException] = []
        self.on_run: Callable[[Request, Site], Any] | None = None

    def run(self, request: Request, site: Site) -> Any:
        self.runs.append(request.id)
        if self.on_run is not None:
            value = self.on_run(request, site)
            if value is not None:
                return value
        return _next(self.results, Result.done("restarted", pid=7))

    def prove(self, request: Request, result: Result, site: Site) -> Any:
        self.proofs.append(result)
        return _next(self.answers, Proof.proved("serves"))


class AsyncRestart(Restart):
    """The same on the loop."""

    async def run(self, request: Request, site: Site) -> Any:
        await site.clock.sleep(timedelta())
        return super().run(request, site)

    async def prove(self, request: Request, result: Result, site: Site) -> Any:
        return super().prove(request, result, site)


class Evidence(Restart):
    """One that is not disruptive and proves nothing."""

    name = "evidence"
    disruptive = False
    per_service = False
    proves = False


def _next(scripted: list[Any], otherwise: Any) -> Any:
    value = scripted.pop(0) if scripted else otherwise
    if isinstance(value, BaseException):
        raise value
    return value


class Shut:
    """A gate that objects as long as it has a reason."""

    name = "shut"

    def __init__(self, reason: str | None = None, *, patient: bool = False) -> None:
        self.reason = reason
        self.patient = patient

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        return self.reason


class FrozenDisk:
    """A disk that can be frozen at every commit."""

    def __init__(self) -> None:
        self.thawed = threading.Event()
        self.thawed.set()

    def connect(self, path: Path) -> sqlite3.Connection:
        disk = self

        class Slow(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
                if sql == "COMMIT":
                    disk.thawed.wait(20)
                return super().execute(sql, *values)

        return sqlite3.connect(path, isolation_level=None, factory=Slow)


SERVICES = (
    Service(name="qwen", unit="qwen.service", gpus=("0000:01:00.0", "0000:02:00.0")),
    Service(name="llama", unit="llama.service", gpus=("0000:02:00.0",)),
    Service(name="embed", unit="embed.service", gpus=("0000:03:00.0",)),
    Service(name="proxy", unit="proxy.service"),
    Service(name="watched", unit="watched.service", mode="observe"),
)


class Rig:
    """An executor over a real store, a real ledger and real workers; only the clock is a fake."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.host = FakeHost(folder / "host", clock=options.pop("clock", None))
        self.clock = self.host.clock
        self.reports: list[StepReport] = []
        self.action: Restart = options.pop("action", None) or Restart()
        self.evidence = Evidence()
        self.gate = Shut(options.pop("reason", None), patient=options.pop("patient", False))
        self.mode: str | tuple[str, ...] = options.pop("mode", "enforce")
        self.limits: Limits = options.pop("limits", Limits())
        self.tripped: list[str] = []
        self.disk: FrozenDisk = FrozenDisk()
        self.workers = Workers()
        assert not options, options

    async def __aenter__(self) -> Rig:
        self.store = Store(self.folder / "bandog.db", clock=self.clock, connect=self.disk.connect)
        await self.store.open(timedelta(seconds=10))
        self.saved: Saved = await self.store.load()
        registry = Registry(SERVICES)
        self.ledger = Ledger(self.limits, self.saved.charges, self.saved.memory.get(BUDGETS_KEY, {}))
        site = FakeSite(self.host, services=FakeServices(*SERVICES), loop=asyncio.get_running_loop())
        self.executor = Executor(
            site=site,
            clock=self.clock,
            store=self.store,
            ledger=self.ledger,
            workers=self.workers,
            actions={"restart": self.action, "evidence": self.evidence},
            gates=[self.gate],
            report=self.reports.append,
            incident_of=incident,
            service_of=lambda name: registry.get(name),
            mode=lambda: self.mode,
            on_tripped=self.tripped.append,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        self.disk.thawed.set()
        await self.executor.close(timedelta(seconds=1))
        await self.store.close(timedelta(seconds=10))

    def states(self, number: str = "1.1") -> list[StepState]:
        """How the request went."""
        return [one.state for one in self.reports if one.request == number]

    def last(self, number: str = "1.1") -> StepReport:
        """The newest report on the request."""
        return [one for one in self.reports if one.request == number][-1]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for threads and tasks; the fake clock stands still."""
        while not condition():  # noqa: ASYNC110  (the other side is a thread)
            await asyncio.sleep(0.001)

    async def end(self, number: str = "1.1") -> StepReport:
        """Wait until the request has ended, with the clock running."""
        while not (self.states(number) and self.last(number).state.ended):
            await asyncio.sleep(0.001)
            # A slow disk or thread of the test machine must not look like time on the host.
            if not self.workers.busy and self.store.stuck_for() is None:
                self.clock.advance(timedelta(milliseconds=500))
        return self.last(number)

    async def passing(self, duration: timedelta, step: timedelta = timedelta(seconds=5)) -> None:
        """Let time pass and everything that is due happen."""
        for _ in range(duration // step):
            self.clock.advance(step)
            for _ in range(3):
                await asyncio.sleep(0.001)


def play(rig: Rig, story: Callable[[Rig], Awaitable[Any]]) -> Any:
    """Run a story on a rig under a deadline."""

    async def bounded() -> Any:
        async with rig:
            return await asyncio.wait_for(story(rig), 20)

    return asyncio.run(bounded())


def saved_in(folder: Path) -> Saved:
    """What the next start would read."""

    async def read() -> Saved:
        store = Store(folder / "bandog.db", clock=FakeClock())
        await store.open(timedelta(seconds=10))
        await store.close(timedelta(seconds=10))
        return await store.load()

    return asyncio.run(read())


# --- the straight way ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Restart, AsyncRestart])
def test_an_allowed_request_is_recorded_run_once_and_proved(tmp_path: Path, kind: type[Restart]) -> None:
    action = kind()
    seen: list[Saved] = []

    def look(request: Request, site: Site) -> None:
        connection = sqlite3.connect(f"file:{tmp_path / 'bandog.db'}?mode=ro", uri=True)
        seen.append(connection.execute("SELECT body FROM requests").fetchall())
        seen.append(connection.execute("SELECT body FROM charges").fetchall())
        connection.close()

    async def story(rig: Rig) -> None:
        action.on_run = look
        action.answers = [Proof.not_yet("loads"), Proof.proved("serves", seconds=3)]
        rig.executor.submit(request())
        end = await rig.end()
        assert (end.state, end.why, dict(end.facts)) == (S.PROVED, "serves", {"pid": 7, "seconds": 3})
        assert rig.states() == [S.RUNNING, S.PROVING, S.PROVED]
        assert action.runs == ["1.1"]

    play(Rig(tmp_path, action=action), story)
    assert '"state":"running"' in seen[0][0][0], "the intent was on the disk before the act"  # type: ignore[index]
    assert len(seen[1]) == 1, "and so was the charge"  # type: ignore[arg-type]
    assert len(saved_in(tmp_path).charges) == 1


def test_what_is_not_disruptive_runs_at_once_whatever_gates_mode_budget_and_disk_say(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.disk.thawed.clear()
        rig.executor.submit(request(action="evidence", disruptive=False, service=None, mode="observe"))
        await rig.until(lambda: rig.states() == [S.RUNNING, S.PROVED])
        rig.disk.thawed.set()

    play(Rig(tmp_path, mode="observe", reason="held"), story)


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request())
        rig.executor.submit(request())
        await rig.end()
        assert rig.action.runs == ["1.1"]

    play(Rig(tmp_path), story)


# --- gates ---------------------------------------------------------------------------------------


def test_a_gate_is_told_once_and_asked_again_until_it_opens(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request())
        await rig.passing(timedelta(minutes=1))
        assert [(one.state, one.why) for one in rig.reports] == [(S.WAITING, "apt runs")]
        rig.gate.reason = None
        assert (await rig.end()).state is S.PROVED

    play(Rig(tmp_path, reason="apt runs"), story)


def test_a_poke_asks_the_gates_at_once(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request())
        await rig.until(lambda: rig.reports)
        rig.gate.reason = None
        rig.executor.poke()
        await rig.until(lambda: rig.action.runs)

    play(Rig(tmp_path, reason="held"), story)


def test_more_than_an_hour_at_a_gate_is_skipped_but_not_at_a_window(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request())
        await rig.passing(timedelta(hours=3), timedelta(minutes=2))
        assert rig.states() == [S.WAITING], "a window may be days away"
        rig.gate.patient = False
        await rig.passing(timedelta(minutes=70), timedelta(minutes=2))
        assert rig.last().state is S.SKIPPED
        assert rig.last().why == "not begun within 1h: sat 02:00"

    play(Rig(tmp_path, reason="sat 02:00", patient=True), story)


def test_a_dropped_request_that_waits_never_runs(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request())
        await rig.until(lambda: rig.reports)
        rig.executor.drop("1.1", "the fault has cleared")
        await rig.until(lambda: rig.states() == [S.WAITING, S.SKIPPED])
        assert rig.last().why == "the fault has cleared"
        assert rig.action.runs == []

    play(Rig(tmp_path, reason="held"), story)


# --- modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "fields", "why"),
    [
        ("observe", {}, "mode: observe"),
        (("relaunch",), {}, "mode: observe"),
        ("enforce", {"mode": "observe"}, "policy xid-contained-ecc only observes"),
        ("enforce", {"service": "watched"}, "service watched is only observed"),
    ],
)
def test_the_strictest_mode_wins_and_the_step_ends_would(
    tmp_path: Path, mode: str | tuple[str, ...], fields: Mapping[str, Any], why: str
) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request(**fields))
        end = await rig.end()
        assert (end.state, end.why) == (S.WOULD, f"would have restarted {fields.get('service', 'qwen')} ({why})")
        assert (rig.action.runs, rig.executor.would) == ([], 1)

    play(Rig(tmp_path, mode=mode), story)
    assert [one.shadow for one in saved_in(tmp_path).charges] == [True]


def test_in_observe_the_gates_and_shadow_budgets_run_too(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request("1.1"))
        await rig.until(lambda: rig.states("1.1") == [S.WAITING])
        rig.gate.reason = None
        rig.executor.poke()
        assert (await rig.end("1.1")).state is S.WOULD
        rig.executor.submit(request("1.2"))
        end = await rig.end("1.2")
        assert end.state is S.EXHAUSTED
        assert "would not have restarted: the budget of 1 per 1h for restart of qwen is used up" in end.why

    limits = Limits(action=Rate(count=1, per=timedelta(hours=1)))
    play(Rig(tmp_path, mode="observe", reason="held", limits=limits), story)


def test_a_drill_acts_only_with_really(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request("1.1", drill=True))
        assert (await rig.end("1.1")).why == "drill: would have restarted qwen"
        rig.executor.submit(request("1.2", drill=True, facts={"really": True}))
        assert (await rig.end("1.2")).state is S.PROVED
        assert rig.action.runs == ["1.2"]

    play(Rig(tmp_path), story)


@pytest.mark.parametrize("fields", [{"live": False}, {"facts": {"glued": True}}])
def test_what_is_not_live_or_is_glued_never_acts(tmp_path: Path, fields: Mapping[str, Any]) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request(**fields))
        assert (await rig.end()).state is S.SKIPPED
        assert rig.action.runs == []

    play(Rig(tmp_path), story)


# --- budgets --------------------------------------------------------------------------------------


def test_the_sixth_restart_within_an_hour_is_exhausted_and_the_ones_before_back_off(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        began: list[Instant] = []
        rig.action.on_run = lambda request, site: began.append(site.clock.now())
        for number in range(1, 6):
            rig.executor.submit(request(f"{number}.1", found_at=rig.clock.now()))
            assert (await rig.end(f"{number}.1")).state is S.PROVED
        gaps = [later.since(earlier) for earlier, later in itertools.pairwise(began)]
        # Counted from charge to charge; the calls seen here come a step of the clock later.
        assert all(gap >= timedelta(seconds=10 * 2**step - 2) for step, gap in enumerate(gaps)), gaps
        rig.executor.submit(request("6.1", found_at=rig.clock.now()))
        end = await rig.end("6.1")
        assert (end.state, end.why) == (S.EXHAUSTED, "the budget of 5 per 1h for restart of qwen is used up")

    play(Rig(tmp_path), story)


def test_one_restart_answers_every_fault_that_was_seen_before_it(tmp_path: Path) -> None:
    """A fault of the links strikes eight GPUs of one service; that is one restart, and one of its budget."""

    async def story(rig: Rig) -> None:
        rig.clock.advance(timedelta(seconds=1))
        for number in range(1, 9):
            rig.executor.submit(request(f"{number}.1"))
        ends = [await rig.end(f"{number}.1") for number in range(1, 9)]
        assert {one.state for one in ends} == {S.PROVED}
        assert rig.action.runs == ["1.1"]
        assert ends[7].why == "restart of qwen for incident #1 came after it was seen, and is proved"
        rig.executor.submit(request("9.1", with_={"settle": "1m"}))
        rig.executor.submit(request("10.1", found_at=rig.clock.now()))
        assert [(await rig.end(one)).state for one in ("9.1", "10.1")] == [S.PROVED, S.PROVED]
        assert rig.action.runs == ["1.1", "9.1", "10.1"], "another act, and a fault that came after it"

    play(Rig(tmp_path), story)
    assert len(saved_in(tmp_path).charges) == 3


def test_what_failed_or_was_done_by_the_manager_answers_no_other_fault(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.clock.advance(timedelta(seconds=1))
        rig.action.answers = [Proof.disproved("dead again")]
        rig.action.results = [Result.done("x"), Result.done("systemd did", by_manager=True)]
        for number in range(1, 4):
            rig.executor.submit(request(f"{number}.1"))
            await rig.end(f"{number}.1")
        assert rig.action.runs == ["1.1", "2.1", "3.1"]

    play(Rig(tmp_path), story)


def test_over_the_hosts_budget_the_breaker_trips_once_survives_a_restart_and_is_rearmed(tmp_path: Path) -> None:
    limits = Limits(host=Rate(count=2, per=timedelta(days=1)))

    async def first(rig: Rig) -> None:
        for number, service in enumerate(("qwen", "llama", "embed"), 1):
            rig.executor.submit(request(f"{number}.1", service=service))
            await rig.end(f"{number}.1")
        assert [rig.last(f"{number}.1").state for number in range(1, 4)] == [S.PROVED, S.PROVED, S.WOULD]
        assert len(rig.tripped) == 1
        assert "the budget of 2 per 1d for this host is used up" in rig.tripped[0]

    async def second(rig: Rig) -> None:
        rig.executor.submit(request("5.1", service="embed"))
        assert (await rig.end("5.1")).state is S.WOULD
        assert rig.tripped == [], "it says so once"
        assert rig.executor.rearm()
        rig.executor.submit(request("6.1", service="embed"))
        assert (await rig.end("6.1")).state is S.PROVED

    play(Rig(tmp_path, limits=limits), first)
    clock = FakeClock(boot_id="c0de" * 8, boottime=timedelta(minutes=20))
    play(Rig(tmp_path, limits=limits, clock=clock), second)
    assert not play(Rig(tmp_path, limits=limits), rearmed)


async def rearmed(rig: Rig) -> bool:
    """Whether there was anything to re-arm."""
    return rig.executor.rearm()


def test_lost_state_opens_the_breaker_until_it_is_armed_again(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.trip("the database was lost")
        rig.executor.trip("again")
        rig.executor.submit(request())
        assert (await rig.end()).why == "would have restarted qwen (the database was lost)"
        assert rig.tripped == ["the database was lost"]

    play(Rig(tmp_path), story)
    assert saved_in(tmp_path).memory[BUDGETS_KEY]["breaker"]["why"] == "the database was lost"


# --- the record -----------------------------------------------------------------------------------


def test_without_its_record_nothing_happens_and_after_a_thaw_it_goes_on(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.disk.thawed.clear()
        rig.executor.submit(request())
        await rig.passing(timedelta(minutes=2))
        assert rig.states() == [S.WAITING]
        assert rig.last().why == "the record cannot be written: no answer"
        assert rig.action.runs == []
        rig.gate.reason = "somebody held it meanwhile"
        rig.disk.thawed.set()
        await rig.until(lambda: rig.last().why == "somebody held it meanwhile")
        rig.gate.reason = None
        assert (await rig.end()).state is S.PROVED
        assert rig.action.runs == ["1.1"]

    play(Rig(tmp_path), story)
    assert len(saved_in(tmp_path).charges) == 1


def test_a_record_that_is_not_written_within_ten_minutes_fails_the_step(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.disk.thawed.clear()
        rig.executor.submit(request())
        await rig.passing(timedelta(minutes=11), timedelta(seconds=10))
        assert (rig.last().state, rig.action.runs) == (S.FAILED, [])
        assert rig.last().why == "the record could not be written within 10 minutes"

    play(Rig(tmp_path), story)


def test_a_request_dropped_while_the_disk_hangs_is_not_run_when_it_thaws(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.disk.thawed.clear()
        rig.executor.submit(request())
        await rig.passing(timedelta(seconds=20))
        rig.executor.drop("1.1", "not wanted")
        await rig.passing(timedelta(seconds=20))
        assert rig.last().state is S.SKIPPED
        rig.disk.thawed.set()
        await rig.passing(timedelta(seconds=20))
        assert rig.action.runs == []

    play(Rig(tmp_path), story)


# --- what an action does ----------------------------------------------------------------------------


def test_retry_is_tried_three_times_more_with_pauses_and_counted_once(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.action.results = [Result.retry(f"busy {number}") for number in range(4)]
        rig.executor.submit(request())
        end = await rig.end()
        assert (end.state, end.why) == (S.FAILED, "gave up after 4 attempts: busy 3")
        assert rig.action.runs == ["1.1"] * 4
        waits = [one.why for one in rig.reports if one.why.startswith("tries again")]
        assert waits == [
            "tries again in 5s: busy 0",
            "tries again in 20s: busy 1",
            "tries again in 1m: busy 2",
        ]

    play(Rig(tmp_path), story)
    assert len(saved_in(tmp_path).charges) == 1


@pytest.mark.parametrize(
    ("outcome", "state", "why"),
    [
        (Result.failed("unkillable"), S.FAILED, "unkillable"),
        (Result.skipped("stopped by a person"), S.SKIPPED, "stopped by a person"),
        (ValueError("secret"), S.FAILED, "restart raised ValueError in run"),
        ("odd", S.FAILED, "restart returned str instead of a Result"),
    ],
)
@pytest.mark.parametrize("kind", [Restart, AsyncRestart])
def test_whatever_an_action_returns_or_raises_ends_the_step(
    tmp_path: Path, kind: type[Restart], outcome: Any, state: StepState, why: str
) -> None:
    async def story(rig: Rig) -> None:
        rig.action.results = [outcome]
        rig.executor.submit(request())
        end = await rig.end()
        assert (end.state, end.why) == (state, why)
        rig.executor.submit(request("2.1", service="embed"))
        assert (await rig.end("2.1")).state is S.PROVED, "the slot is free again"

    play(Rig(tmp_path, action=kind()), story)


@pytest.mark.parametrize("error", [SystemExit(4), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("kind", [Restart, AsyncRestart])
def test_nothing_that_an_action_raises_ends_the_agent_or_leaves_the_step_open(
    tmp_path: Path, kind: type[Restart], error: BaseException
) -> None:
    async def story(rig: Rig) -> None:
        rig.action.results = [error]
        rig.executor.submit(request())
        assert (await rig.end()).state is S.FAILED
        rig.action.proof_deadline = timedelta(seconds=30)
        rig.action.answers = [error]
        rig.executor.submit(request("2.1", service="embed"))
        assert (await rig.end("2.1")).state is S.PROVED, "the slot is free again, and the proof is asked again"

    play(Rig(tmp_path, action=kind()), story)


@pytest.mark.parametrize(
    "result",
    [Result.failed("x" * 1_000_000), Result.failed(object()), Result.failed("no", odd=object())],  # type: ignore[arg-type]
    ids=["long", "no-text", "odd-facts"],
)
def test_an_end_that_the_store_could_not_hold_is_cut_to_what_it_can(tmp_path: Path, result: Result) -> None:
    async def story(rig: Rig) -> None:
        rig.action.results = [result]
        rig.executor.submit(request())
        assert (await rig.end()).state is S.FAILED

    play(Rig(tmp_path), story)
    assert not saved_in(tmp_path).requests, "the store must not hold it to be under way for ever"


@pytest.mark.parametrize("field", [{"state": "done"}, {"facts": None}], ids=["state", "facts"])
def test_a_result_or_proof_with_fields_of_other_types_is_no_fault_of_bandog(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    async def story(rig: Rig) -> None:
        rig.action.proof_deadline = timedelta(seconds=30)
        rig.action.results = [dataclasses.replace(Result.done("x"), **field)]
        rig.action.answers = [dataclasses.replace(Proof.disproved("y"), **field)]
        rig.executor.submit(request())
        assert "own fault" not in (await rig.end()).why

    play(Rig(tmp_path), story)


def test_a_plain_action_that_overruns_fails_the_step_and_keeps_the_slot_until_it_ends(tmp_path: Path) -> None:
    blocked = threading.Event()

    async def story(rig: Rig) -> None:
        rig.action.run_deadline = timedelta(milliseconds=300)
        rig.action.on_run = lambda request, site: blocked.wait(20) and None if request.id == "1.1" else None
        rig.executor.submit(request("1.1"))
        await rig.until(lambda: rig.states("1.1") == [S.RUNNING, S.FAILED])
        assert "restart gave no answer within 0.3 s; what it began may still be going on" in rig.last("1.1").why
        rig.executor.submit(request("2.1", service="embed"))
        await rig.until(lambda: rig.states("2.1") == [S.WAITING])
        assert rig.last("2.1").why == "waits for restart of qwen of incident #1"
        blocked.set()
        assert (await rig.end("2.1")).state is S.PROVED
        assert rig.workers.late == 1

    play(Rig(tmp_path), story)


def test_a_coroutine_that_overruns_is_cancelled(tmp_path: Path) -> None:
    class Hangs(Restart):
        async def run(self, request: Request, site: Site) -> Any:
            await asyncio.Event().wait()

    async def story(rig: Rig) -> None:
        rig.action.run_deadline = timedelta(milliseconds=50)
        rig.executor.submit(request())
        await rig.until(lambda: rig.states() == [S.RUNNING, S.FAILED])
        assert rig.last().why.startswith("restart took longer than")

    play(Rig(tmp_path, action=Hangs()), story)


def test_facts_without_a_json_form_are_dropped_and_the_proof_goes_on(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.action.results = [Result.done("restarted", odd=object())]
        rig.executor.submit(request())
        assert (await rig.end()).state is S.PROVED
        assert dict(rig.action.proofs[0].facts) == {}

    play(Rig(tmp_path), story)


def test_an_action_that_is_not_loaded_fails_the_step(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.submit(request(action="relaunch"))
        assert (await rig.end()).why == "no action relaunch is loaded"

    play(Rig(tmp_path), story)


# --- proof -------------------------------------------------------------------------------------------


def test_disproved_fails_and_a_proof_that_never_comes_fails_at_its_deadline(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.action.answers = [Proof.disproved("dead again")]
        rig.executor.submit(request("1.1"))
        assert (await rig.end("1.1")).why == "dead again"
        rig.action.proof_deadline = timedelta(seconds=30)
        rig.action.answers = [Proof.not_yet("loads"), ValueError("x")] + [Proof.not_yet("still loads")] * 100
        rig.executor.submit(request("2.1", service="embed"))
        end = await rig.end("2.1")
        assert (end.state, end.why) == (S.FAILED, "not proved within 30s: still loads")

    play(Rig(tmp_path), story)


def test_one_act_at_a_time_and_during_a_proof_only_shared_gpus_wait(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.action.answers = [Proof.not_yet()] * 1000
        rig.executor.submit(request("1.1", service="qwen"))
        await rig.until(lambda: S.PROVING in rig.states("1.1"))
        rig.executor.submit(request("2.1", service="llama"))
        rig.executor.submit(request("3.1", service="embed"))
        rig.executor.submit(request("4.1", service="proxy"))
        await rig.until(lambda: S.PROVING in rig.states("3.1") and S.PROVING in rig.states("4.1"))
        assert rig.last("2.1").why == "waits for the proof of restart of qwen of incident #1"
        assert rig.action.runs == ["1.1", "3.1", "4.1"]
        rig.action.answers.clear()
        assert (await rig.end("2.1")).state is S.PROVED

    play(Rig(tmp_path), story)


def test_while_one_acts_the_others_wait(tmp_path: Path) -> None:
    go = threading.Event()
    together: list[int] = []
    inside = threading.Semaphore(0)

    async def story(rig: Rig) -> None:
        def run(request: Request, site: Site) -> None:
            inside.release()
            together.append(inside._value)
            go.wait(20)
            inside.acquire()

        rig.action.on_run = run
        for number, service in enumerate(("qwen", "embed", "proxy"), 1):
            rig.executor.submit(request(f"{number}.1", service=service))
        await rig.until(lambda: rig.action.runs and len(rig.reports) >= 3)
        assert rig.last("3.1").why == "waits for restart of qwen of incident #1"
        go.set()
        for number in range(1, 4):
            assert (await rig.end(f"{number}.1")).state is S.PROVED

    play(Rig(tmp_path), story)
    assert together == [1, 1, 1]


def gpus(name: str, *addresses: str, everything: bool = False) -> Service:
    """A service on these GPUs."""
    return Service(name=name, unit=f"{name}.service", gpus="all" if everything else addresses)


def test_services_share_gpus_unless_it_is_certain_that_they_do_not() -> None:
    a, b, none = gpus("a", "0000:01:00.0"), gpus("b", "0000:02:00.0"), gpus("none")
    everything, uuid = gpus("all", everything=True), gpus("uuid", "GPU-4711")
    assert not share_gpus(a, b)
    assert not share_gpus(a, none)
    assert not share_gpus(everything, none)
    assert share_gpus(everything, b)
    assert share_gpus(a, uuid), "an address and a UUID may be the same GPU"
    assert share_gpus(a, gpus("c", "0000:01:00.0", "0000:02:00.0"))
    assert share_gpus(None, a)


# --- after a restart ------------------------------------------------------------------------------------


def test_a_run_of_which_nothing_is_known_is_never_run_again_but_proved(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.executor.resume([SavedRequest(request=request(), state=S.RUNNING, started=NOW, notes={"stopped": "x"})])
        assert (await rig.end()).state is S.PROVED
        assert rig.action.runs == []
        facts = rig.action.proofs[0].facts
        assert (facts["interrupted"], facts["notes"]) == (True, {"stopped": "x"})
        assert facts["started"]["boot_id"] == NOW.boot_id

    play(Rig(tmp_path), story)


def test_a_proof_goes_on_with_the_stored_result_and_the_time_that_is_left(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.action.proof_deadline = timedelta(seconds=30)
        rig.action.answers = [Proof.not_yet()] * 1000
        done = Result.done("restarted", pid=9)
        began = rig.clock.now()
        rig.clock.advance(timedelta(seconds=20))
        rig.executor.resume([SavedRequest(request=request(), state=S.PROVING, started=NOW, result=done, proving=began)])
        assert (await rig.end()).state is S.FAILED
        assert rig.action.runs == []
        assert rig.action.proofs[0] == done
        assert rig.clock.now().since(began) < timedelta(seconds=40)

    play(Rig(tmp_path), story)


def test_a_proof_whose_time_passed_while_nobody_looked_is_looked_at_all_the_same(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.action.proof_deadline = timedelta(seconds=30)
        rig.action.answers = [Proof.not_yet()] * 3
        began = rig.clock.now()
        rig.clock.advance(timedelta(hours=1))
        done = Result.done("restarted", pid=9)
        rig.executor.resume([SavedRequest(request=request(), state=S.PROVING, started=NOW, result=done, proving=began)])
        assert (await rig.end()).state is S.PROVED
        assert rig.action.runs == []

    play(Rig(tmp_path), story)


def test_what_still_waited_goes_through_the_gates_again_if_its_finding_is_fresh(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.clock.advance(timedelta(minutes=4))
        old = request("2.1", found_at=NOW.plus(-timedelta(minutes=2)))
        other_boot = request("3.1", found_at=dataclasses.replace(NOW, boot_id="d" * 32))
        window = request("4.1", found_at=NOW.plus(-timedelta(hours=2)), with_={"when": "window"}, service="embed")
        rig.executor.resume(
            SavedRequest(request=one, state=S.WAITING) for one in (request("1.1"), old, other_boot, window)
        )
        for number in range(1, 5):
            await rig.end(f"{number}.1")
        assert [rig.last(f"{number}.1").state for number in range(1, 5)] == [S.PROVED, S.SKIPPED, S.SKIPPED, S.PROVED]
        assert rig.last("2.1").why == "its finding is older than 5 minutes"
        assert rig.last("3.1").why == "its finding is of an earlier boot"

    play(Rig(tmp_path), story)


def test_interrupted_evidence_is_gathered_once_more_and_no_third_time(tmp_path: Path) -> None:
    harmless = request(action="evidence", disruptive=False, service=None)

    async def story(rig: Rig) -> None:
        rig.executor.resume([SavedRequest(request=harmless, state=S.RUNNING, started=NOW)])
        assert (await rig.end()).state is S.PROVED

    async def again(rig: Rig) -> None:
        notes = {"_executor": {"attempts": 0, "resumed": 1}}
        rig.executor.resume([SavedRequest(request=harmless, state=S.RUNNING, started=NOW, notes=notes)])
        end = await rig.end()
        assert (end.state, end.why) == (S.FAILED, "the agent ended twice while it ran")

    async def odd(rig: Rig) -> None:
        rig.executor.resume([SavedRequest(request=harmless, state=S.RUNNING, started=NOW, notes={"_executor": 7})])
        assert (await rig.end()).state is S.PROVED

    for one in (story, again, odd):
        play(Rig(tmp_path), one)


def test_closing_waits_for_the_act_and_leaves_the_proof_to_the_next_start(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    async def story(rig: Rig) -> None:
        def run(request: Request, site: Site) -> None:
            begun.set()
            go.wait(20)

        rig.action.on_run = run
        rig.executor.submit(request("1.1"))
        rig.executor.submit(request("2.1", service="embed"))
        await rig.until(begun.is_set)
        closing = asyncio.ensure_future(rig.executor.close(timedelta(seconds=5)))
        await asyncio.sleep(0)
        go.set()
        await closing
        rig.executor.submit(request("3.1", service="proxy"))
        assert rig.action.runs == ["1.1"]

    play(Rig(tmp_path), story)
    states = {one.request.id: (one.state, one.result) for one in saved_in(tmp_path).requests}
    assert states["1.1"] == (S.PROVING, Result.done("restarted", pid=7))
    assert states["2.1"] == (S.WAITING, None)
    assert states["3.1"] == (S.WAITING, None)


def test_closing_gives_an_act_that_hangs_up_and_leaves_it_running(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    async def story(rig: Rig) -> None:
        rig.action.on_run = lambda request, site: (begun.set(), go.wait(20), None)[2]
        rig.executor.submit(request())
        await rig.until(begun.is_set)
        await rig.executor.close(timedelta(milliseconds=20))
        go.set()

    play(Rig(tmp_path), story)
    assert [one.state for one in saved_in(tmp_path).requests] == [S.RUNNING]


def test_a_note_is_on_the_disk_before_the_action_goes_on(tmp_path: Path) -> None:
    class Notes(Restart):
        async def run(self, request: Request, site: Site) -> Any:
            await rig.executor.note(request, {"stopped": True})
            self.runs.append(rig.store.path.read_bytes() and request.id)
            self.noted = [one.notes for one in rig.executor.under_way()]
            return Result.done()

    rig = Rig(tmp_path, action=Notes())

    async def story(rig: Rig) -> None:
        rig.executor.submit(request())
        await rig.end()
        assert rig.action.noted == [{"stopped": True}]  # type: ignore[attr-defined]
        with pytest.raises(LookupError):
            await rig.executor.note(request("9.9"), {})

    play(rig, story)


@pytest.mark.parametrize(
    ("name", "word"),
    [("restart", "restarted"), ("relaunch", "relaunched"), ("reset", "reset"), ("gpu-off", "done gpu-off on")],
)
def test_actions_are_told_in_the_past(name: str, word: str) -> None:
    assert past(name) == word
