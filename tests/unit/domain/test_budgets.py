"""What may happen how often, over restarts, boots and lying clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from bandog.domain.budgets import Allowance, Charge, Ledger, Limits, Usage
from bandog.domain.model import Instant, Request
from bandog.domain.policy import Rate

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
T0 = Instant(boot_id="boot-1", boottime=timedelta(hours=2), utc=NOON, synced=True)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
OK, WAIT, EXHAUSTED, TRIPPED = Allowance.OK, Allowance.WAIT, Allowance.EXHAUSTED, Allowance.TRIPPED


def request(number: int, action: str = "restart", service: str | None = "qwen", **fields: Any) -> Request:
    return samples.request(f"{number}.1", at=T0, action=action, service=service, **fields)


def reboot(number: int, **fields: Any) -> Request:
    return request(number, "reboot", None, **fields)


def reopened(ledger: Ledger) -> Ledger:
    """The ledger after a restart of the agent, through JSON."""
    state = json.loads(json.dumps(ledger.export()))
    return Ledger(ledger.limits, list(ledger._charges.values()), state)


def after_boot(earlier: Instant, boot: str, uptime: timedelta, *, utc: datetime, synced: bool) -> Instant:
    return Instant(boot_id=boot, boottime=uptime, utc=utc, synced=synced)


class TestServices:
    def test_five_restarts_an_hour_and_the_sixth_is_exhausted(self) -> None:
        ledger, now = Ledger(Limits()), T0
        for number in range(5):
            now = now.plus(10 * MINUTE)
            assert ledger.check(request(number), now).kind is OK
            ledger.charge(request(number), now)
        verdict = ledger.check(request(6), now)
        assert verdict.kind is EXHAUSTED
        assert verdict.why == "the budget of 5 per 1h for restart of qwen is used up"
        assert verdict.until == T0.plus(70 * MINUTE)
        assert ledger.check(request(6), T0.plus(70 * MINUTE)).kind is OK

    def test_services_and_actions_have_their_own(self) -> None:
        ledger = Ledger(Limits.of({"restart": Rate(count=1, per=HOUR)}))
        ledger.charge(request(1), T0)
        now = T0.plus(MINUTE)
        assert ledger.check(request(2), now).kind is EXHAUSTED
        assert ledger.check(request(2, service="llama"), now).kind is OK
        assert ledger.check(request(2, action="relaunch"), now).kind is OK

    def test_a_request_is_charged_once(self) -> None:
        ledger = Ledger(Limits.of({"restart": Rate(count=1, per=HOUR)}))
        first = ledger.charge(request(1), T0)
        assert ledger.charge(request(1), T0.plus(MINUTE)) is first
        assert ledger.check(request(1), T0.plus(MINUTE)).kind is OK

    def test_a_budget_of_none_allows_nothing(self) -> None:
        ledger = Ledger(Limits.of({"restart": Rate(count=0, per=HOUR)}))
        assert ledger.check(request(1), T0).kind is EXHAUSTED

    def test_the_keys_are_step_subject_service_and_host(self) -> None:
        charge = Ledger(Limits()).charge(request(1), T0)
        assert charge.keys == (
            "host",
            "step:xid-contained-ecc:0:restart",
            "subject:gpu:0000:e5:00.0:restart",
            "service:qwen:restart",
        )

    def test_a_unit_has_one_budget_under_whatever_name_its_service_goes(self) -> None:
        units = {"qwen": "vllm.service"}
        ledger = Ledger(Limits.of({"restart": Rate(count=1, per=HOUR)}), unit_of=lambda name: units.get(name, ""))
        ledger.charge(request(1), T0)
        units = {"renamed": "vllm.service", "llama": "llama.service"}
        verdict = ledger.check(request(2, service="renamed"), T0.plus(MINUTE))
        assert verdict.kind is EXHAUSTED
        assert verdict.why == "the budget of 1 per 1h for restart of vllm.service is used up"
        assert ledger.check(request(2, service="llama"), T0.plus(MINUTE)).kind is OK
        assert [one.key for one in ledger.usage(T0)] == ["host", "service:qwen:restart"]

    def test_a_unit_has_one_backoff_under_whatever_name_its_service_goes(self) -> None:
        ledger = Ledger(Limits(), unit_of=lambda _: "vllm.service")
        ledger.charge(request(1), T0)
        ledger.charge(request(2), T0)
        assert ledger.check(request(3, service="renamed"), T0).kind is WAIT


class TestBackoff:
    def test_the_first_act_is_at_once_and_then_it_doubles(self) -> None:
        ledger, now = Ledger(Limits.of({"restart": Rate(count=100, per=HOUR)})), T0
        waits = []
        for number in range(10):
            verdict = ledger.check(request(number), now)
            if verdict.kind is WAIT:
                assert verdict.until is not None
                waits.append((verdict.until.boottime - now.boottime).total_seconds())
                now = verdict.until
            assert ledger.check(request(number), now).kind is OK
            ledger.charge(request(number), now)
        assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]

    def test_health_shrinks_it_step_by_step_and_an_act_ends_the_health(self) -> None:
        ledger = Ledger(Limits())
        for number in range(3):
            ledger.charge(request(number), T0)
        ledger.healthy("qwen", T0)
        assert ledger.check(request(4), T0).until == T0.plus(timedelta(seconds=40))
        ledger.healthy("qwen", T0.plus(5 * MINUTE))
        later = T0.plus(21 * MINUTE)
        ledger.charge(request(4), later)
        assert ledger.check(request(5), later).until == later.plus(timedelta(seconds=20))
        much_later = later.plus(30 * DAY)
        assert ledger.check(request(5), much_later).kind is OK
        ledger.charge(request(5), much_later)
        assert ledger.check(request(6), much_later).until == much_later.plus(timedelta(seconds=40))

    def test_after_any_number_of_acts_some_health_is_enough(self) -> None:
        ledger = Ledger(Limits.of({"restart": Rate(count=100, per=HOUR), "host": Rate(count=100, per=DAY)}))
        for number in range(50):
            ledger.charge(request(number), T0)
        ledger.healthy("qwen", T0)
        now = T0.plus(70 * MINUTE)
        ledger.charge(request(50), now)
        assert ledger.check(request(51), now).until == now.plus(timedelta(seconds=10))

    def test_it_survives_restarts_and_boots(self) -> None:
        ledger = Ledger(Limits())
        for number in range(4):
            ledger.charge(request(number), T0)
        booted = after_boot(T0, "boot-2", timedelta(seconds=30), utc=NOON - 9000 * DAY, synced=False)
        verdict = reopened(ledger).check(request(5), booted)
        assert (verdict.kind, verdict.until) == (WAIT, booted.plus(timedelta(seconds=50)))


class TestHost:
    LIMITS = Limits.of({"host": Rate(count=3, per=DAY)})

    def used_up(self) -> Ledger:
        ledger = Ledger(self.LIMITS)
        for number in range(3):
            ledger.charge(request(number, service=f"s{number}"), T0.plus(number * MINUTE))
        return ledger

    def test_over_it_the_breaker_trips_and_says_so_once(self) -> None:
        ledger = self.used_up()
        now = T0.plus(HOUR)
        first = ledger.check(request(9, service="x"), now)
        assert (first.kind, first.first) == (TRIPPED, True)
        assert "rearm" in first.why
        again = ledger.check(request(10, service="x"), now)
        assert (again.kind, again.first, again.why) == (TRIPPED, False, first.why)

    def test_it_stays_tripped_over_boots_and_when_the_day_is_over(self) -> None:
        ledger = self.used_up()
        ledger.check(request(9, service="x"), T0.plus(HOUR))
        later = after_boot(T0, "boot-2", 3 * DAY, utc=NOON + 3 * DAY, synced=True)
        assert reopened(ledger).check(request(11, service="x"), later).kind is TRIPPED

    def test_rearming_ends_it_with_a_fresh_budget(self) -> None:
        ledger = self.used_up()
        now = T0.plus(HOUR)
        ledger.check(request(9, service="x"), now)
        assert ledger.rearm()
        ledger = reopened(ledger)
        for number in range(20, 23):
            assert ledger.check(request(number, service=f"t{number}"), now).kind is OK
            ledger.charge(request(number, service=f"t{number}"), now)
        assert ledger.check(request(23, service="y"), now).first
        assert not Ledger(self.LIMITS).rearm()

    def test_it_is_asked_before_a_services_own_budget(self) -> None:
        """Four units with five restarts each use the host's twenty up: the next one trips."""
        ledger = Ledger(Limits())
        for number in range(20):
            ledger.charge(request(number, service=f"s{number % 4}"), T0)
        assert ledger.check(request(99, service="s3"), T0.plus(MINUTE)).kind is TRIPPED

    def test_a_stored_breaker_that_cannot_be_read_counts_as_tripped(self) -> None:
        for junk in ("x", 7, {}, {"at": {}}, []):
            assert Ledger(Limits(), state={"breaker": junk}).check(request(1), T0).kind is TRIPPED
        junk_state: Any = ["x"]
        assert Ledger(Limits(), state=junk_state).check(request(1), T0).kind is TRIPPED


class TestShadow:
    def test_what_was_only_observed_is_counted_apart(self) -> None:
        ledger = Ledger(Limits.of({"restart": Rate(count=1, per=HOUR), "host": Rate(count=2, per=DAY)}))
        ledger.charge(request(1), T0, shadow=True)
        assert ledger.check(request(2), T0).kind is OK
        assert ledger.check(request(2), T0, shadow=True).kind is EXHAUSTED
        ledger.charge(request(2, service="llama"), T0, shadow=True)
        assert ledger.check(request(3, service="other"), T0, shadow=True).kind is EXHAUSTED
        assert ledger.breaker is None
        assert [use.used for use in ledger.usage(T0) if use.key == "host"] == [0]
        assert [use.used for use in ledger.usage(T0, shadow=True) if use.key == "host"] == [2]

    def test_observing_for_months_does_not_fill_the_memory(self) -> None:
        ledger = Ledger(Limits())
        for number in range(1200):
            ledger.charge(request(number), T0, shadow=True)
        assert len(ledger._charges) == 1000


class TestReboots:
    def test_one_per_fingerprint_a_day_and_one_per_host_in_six_hours(self) -> None:
        ledger = Ledger(Limits())
        ledger.charge(reboot(1), T0)
        assert ledger.check(reboot(2, subject="host", kind="task.hung"), T0.plus(5 * HOUR)).kind is EXHAUSTED
        assert ledger.check(reboot(2, subject="host", kind="task.hung"), T0.plus(6 * HOUR)).kind is OK
        assert ledger.check(reboot(2), T0.plus(23 * HOUR)).kind is EXHAUSTED
        assert ledger.check(reboot(2), T0.plus(24 * HOUR)).kind is OK

    def test_three_in_a_week(self) -> None:
        ledger = Ledger(Limits())
        for number in range(3):
            ledger.charge(reboot(number), T0.plus(number * DAY))
        assert ledger.check(reboot(9), T0.plus(6 * DAY)).kind is EXHAUSTED
        assert ledger.check(reboot(9), T0.plus(7 * DAY)).kind is OK

    def booted(self, uptime: timedelta, *, boot: str = "boot-2", utc: datetime | None = None) -> Instant:
        return after_boot(T0, boot, uptime, utc=utc or NOON + 10 * MINUTE + uptime, synced=True)

    def test_a_fault_that_returns_soon_after_our_reboot_ends_automatic_reboots(self) -> None:
        ledger = Ledger(Limits())
        ledger.charge(reboot(1), T0)
        at = self.booted(10 * MINUTE)
        assert ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, at)
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, at)
        ledger = reopened(ledger)
        verdict = ledger.check(reboot(2, subject="host", kind="x", found_at=at), at.plus(30 * DAY))
        assert verdict.kind is EXHAUSTED
        assert "came back after a reboot of ours" in verdict.why
        assert ledger.rearm()
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, at)
        assert ledger.check(reboot(2, found_at=at), at.plus(30 * DAY)).kind is OK

    def test_the_request_itself_tells_of_the_return(self) -> None:
        ledger = Ledger(Limits())
        ledger.charge(reboot(1), T0)
        at = self.booted(20 * MINUTE)
        assert ledger.check(reboot(2, found_at=at), at).kind is EXHAUSTED
        assert ledger.reboots_ended is not None

    def test_another_fault_a_later_one_or_the_same_boot_does_not(self) -> None:
        ledger = Ledger(Limits())
        ledger.charge(reboot(1), T0)
        early, late = self.booted(10 * MINUTE), self.booted(31 * MINUTE)
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:17:00.0", {}, early)
        assert not ledger.fault_seen("task.hung", "gpu:0000:e5:00.0", {}, early)
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {"glued": True}, early)
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, late)
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, replace(T0, boottime=MINUTE))
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, self.booted(MINUTE, utc=NOON + 9 * DAY))

    def test_a_reboot_only_observed_does_not(self) -> None:
        ledger = Ledger(Limits())
        ledger.charge(reboot(1), T0, shadow=True)
        assert not ledger.fault_seen("nvidia.xid", "gpu:0000:e5:00.0", {}, self.booted(MINUTE))


def test_usage_shows_each_limit_the_host_first() -> None:
    ledger = Ledger(Limits())
    ledger.charge(request(1), T0)
    assert ledger.usage(T0) == (
        Usage(key="host", used=1, limit=20, per=DAY),
        Usage(key="service:qwen:restart", used=1, limit=5, per=HOUR),
    )
    assert ledger.usage(T0.plus(2 * DAY)) == (Usage(key="host", used=0, limit=20, per=DAY),)


def test_old_charges_are_forgotten_only_when_provably_past() -> None:
    ledger = Ledger(Limits())
    ledger.charge(request(1), T0)
    unproved = after_boot(T0, "boot-2", HOUR, utc=NOON + 4000 * DAY, synced=False)
    ledger.charge(request(2), unproved)
    assert [use.used for use in ledger.usage(unproved)] == [2, 1]
    assert len(reopened(ledger)._charges) == 2
    proved = after_boot(T0, "boot-3", HOUR, utc=NOON + 4000 * DAY, synced=True)
    ledger.charge(request(3), proved)
    assert len(ledger._charges) == 2


@pytest.mark.parametrize("year", [1970, 2000, 2099])
def test_a_wrong_clock_frees_no_budget(year: int) -> None:
    ledger = Ledger(Limits.of({"restart": Rate(count=1, per=HOUR)}))
    ledger.charge(request(1), T0)
    lying = after_boot(T0, "boot-2", 10 * MINUTE, utc=datetime(year, 1, 1, tzinfo=UTC), synced=False)
    assert ledger.check(request(2), lying).kind is EXHAUSTED
    assert ledger.check(request(2), lying.plus(50 * MINUTE)).kind is OK


class TrueTime:
    """A world in which real seconds pass, and clocks that may lie about them."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.boot = 1
        self.booted = self.seconds
        self.lie = timedelta(0)
        self.synced = True

    def now(self) -> Instant:
        utc = NOON + timedelta(seconds=self.seconds)
        if not self.synced:
            utc += self.lie
        uptime = timedelta(seconds=self.seconds - self.booted)
        return Instant(boot_id=f"boot-{self.boot}", boottime=uptime, utc=utc, synced=self.synced)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(min_value=0, max_value=20_000)),
        st.tuples(st.just("boot"), st.floats(min_value=0, max_value=600)),
        st.tuples(st.just("clock"), st.floats(min_value=-1e8, max_value=1e8)),
        st.tuples(st.just("synced"), st.booleans()),
        st.tuples(st.just("act"), st.integers(min_value=0, max_value=3)),
        st.tuples(st.just("reboot"), st.integers(min_value=0, max_value=2)),
        st.tuples(st.just("healthy"), st.integers(min_value=0, max_value=3)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("rearm"), st.just(0)),
    ),
    max_size=120,
)


@given(MOVES)
def test_no_budget_is_ever_exceeded_in_real_time(moves: list[tuple[str, Any]]) -> None:
    """Whatever the clocks say, no more than N acts fall into any real T (but for a person's rearm)."""
    limits = Limits.of({"restart": Rate(count=2, per=HOUR), "host": Rate(count=4, per=6 * HOUR)})
    world, ledger, number = TrueTime(), Ledger(limits), 0
    acts: list[tuple[str, float]] = []
    host: list[float] = []
    for move, value in moves:
        if move == "pass":
            world.seconds += value
        elif move == "boot":
            world.seconds += value
            world.boot, world.booted = world.boot + 1, world.seconds
        elif move == "clock":
            world.lie = timedelta(seconds=value)
        elif move == "synced":
            world.synced = value
        elif move == "healthy":
            ledger.healthy(f"s{value}", world.now())
        elif move == "restart":
            ledger = reopened(ledger)
        elif move == "rearm":
            if ledger.rearm():
                host.clear()
        else:
            number += 1
            asked = request(number, service=f"s{value}", found_at=world.now())
            if move == "reboot":
                asked = reboot(number, subject=f"gpu:{value}", found_at=world.now())
            if ledger.check(asked, world.now()).kind is OK:
                ledger.charge(asked, world.now())
                acts.append((asked.service or f"reboot:{asked.subject}", world.seconds))
                host.append(world.seconds)
    _never_more(host, 4, 6 * 3600)
    for name in {name for name, _ in acts}:
        times = [at for other, at in acts if other == name]
        if name.startswith("reboot"):
            _never_more(times, 1, 24 * 3600)
        else:
            _never_more(times, 2, 3600)
    reboots = [at for name, at in acts if name.startswith("reboot")]
    _never_more(reboots, 1, 6 * 3600)
    _never_more(reboots, 3, 7 * 24 * 3600)


def _never_more(times: list[float], count: int, seconds: float) -> None:
    for first, last in zip(times, times[count:], strict=False):
        # A microsecond of grace: the clocks count whole ones.
        assert last - first >= seconds - 1e-5


INSTANTS = st.builds(
    Instant,
    boot_id=st.sampled_from(["a", "b", "c"]),
    boottime=st.timedeltas(min_value=-DAY, max_value=400 * DAY),
    utc=st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)),
    synced=st.booleans(),
)


@given(st.lists(st.tuples(INSTANTS, st.integers(min_value=0, max_value=3), st.booleans()), max_size=40))
def test_any_sequence_of_instants_is_taken(steps: list[tuple[Instant, int, bool]]) -> None:
    ledger = Ledger(Limits())
    for number, (now, what, shadow) in enumerate(steps):
        asked = reboot(number, found_at=now) if what == 0 else request(number, found_at=now)
        verdict = ledger.check(asked, now, shadow=shadow)
        if verdict.kind is OK:
            ledger.charge(asked, now, shadow=shadow)
        if what == 2:
            ledger.healthy("qwen", now)
        ledger.usage(now)
        ledger = reopened(ledger)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("breaker", "reboots_ended", "forgiven", "backoff"), JSON)))
def test_any_stored_state_is_read(state: dict[str, Any]) -> None:
    ledger = Ledger(Limits(), state=state)
    ledger.check(request(1), T0)
    ledger.charge(request(1), T0)
    json.dumps(ledger.export())


def test_charges_as_the_store_writes_them_are_taken() -> None:
    charge = Charge(keys=("host", "service:qwen:restart"), at=T0, request="1.1")
    assert [use.used for use in Ledger(Limits(), [charge]).usage(T0)] == [1, 1]
