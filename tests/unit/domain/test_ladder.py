"""Every edge of a step's life: how it begins, how it ends, and what follows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from chronicle import ACTIONS, E5, Chronicle, ladder

from bandog.domain.changes import ActionTraits, IncidentChanged, RequestDropped
from bandog.domain.ladder import aggregate
from bandog.domain.model import IncidentState, StepState
from bandog.domain.policy import Rate, Step

PROVED, FAILED, SKIPPED = StepState.PROVED, StepState.FAILED, StepState.SKIPPED
EXHAUSTED, WOULD = StepState.EXHAUSTED, StepState.WOULD


@pytest.mark.parametrize(
    ("ends", "whole"),
    [
        ((PROVED,), PROVED),
        ((PROVED, SKIPPED), PROVED),
        ((PROVED, WOULD), WOULD),
        ((WOULD, EXHAUSTED), EXHAUSTED),
        ((PROVED, WOULD, EXHAUSTED, FAILED), FAILED),
        ((SKIPPED, SKIPPED), SKIPPED),
        ((), SKIPPED),
    ],
)
def test_a_step_ends_as_its_requests_do_together(ends: tuple[StepState, ...], whole: StepState) -> None:
    assert aggregate(ends) is whole


class TestEnds:
    @pytest.mark.parametrize("end", ["failed", "skipped", "exhausted"])
    def test_a_step_that_did_not_help_is_followed_at_once(self, end: str) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.end("restart", end, "unkillable")
        assert gpu.asked() == ["restart of qwen", "reboot"]

    def test_a_proved_step_waits_for_the_next_finding(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.end("restart", "proved")
        gpu.wait(hours=23)
        assert gpu.asked() == ["restart of qwen"]
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "reboot"]

    def test_a_step_only_observed_halts_until_the_next_finding(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.end("restart", "would", "would have restarted qwen")
        assert gpu.asked() == ["restart of qwen"]
        ended = gpu.told()[-1]
        assert (ended.what, ended.why, ended.end) == ("step-ended", "would have restarted qwen", WOULD)
        gpu.wait(minutes=1)
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "reboot"]

    def test_evidence_is_done_not_proved_and_the_next_step_begins_at_once(self) -> None:
        gpu = Chronicle(ladder("evidence", "restart"))
        gpu.see()
        gpu.end("evidence", "proved", "bundle.tar.zst")
        assert gpu.asked() == ["evidence", "restart of qwen"]
        assert gpu.incident().proved_step == -1
        assert "evidence done: bundle.tar.zst" in [c.why for c in gpu.changes if isinstance(c, IncidentChanged)]

    def test_failed_evidence_does_not_stop_the_ladder(self) -> None:
        gpu = Chronicle(ladder("evidence", "restart"))
        gpu.see()
        gpu.end("evidence", "failed", "disk full")
        assert gpu.asked() == ["evidence", "restart of qwen"]

    def test_a_finding_while_a_step_runs_or_is_proved_begins_nothing(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        for state in ("running", "proving"):
            gpu.report("1.1", state)
            gpu.wait(seconds=10)
            gpu.see()
        gpu.report("1.1", "proved")
        assert gpu.asked() == ["restart of qwen"]

    def test_a_line_read_late_is_not_news_to_the_step_that_answered_it(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        late = gpu.later(gpu.now, seconds=10)
        gpu.wait(seconds=40)
        gpu.end("restart", "proved")
        gpu.wait(seconds=1)
        gpu.see(at=late)
        assert gpu.asked() == ["restart of qwen"]

    def test_an_end_is_taken_once(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot", "notify"))
        gpu.see()
        gpu.end("restart", "failed")
        before = len(gpu.changes)
        gpu.report("1.1", "failed")
        gpu.report("1.1", "running")
        assert gpu.changes[before:] == []
        gpu.end("reboot", "failed")
        gpu.end("notify", "proved")
        before = len(gpu.changes)
        gpu.report("1.3", "failed")
        assert gpu.changes[before:] == []


class TestUsedUp:
    def test_after_the_last_step_one_page_and_a_reminder_a_day(self) -> None:
        gpu = Chronicle(ladder("restart"))
        gpu.see()
        gpu.end("restart", "failed", "the job timed out")
        assert gpu.incident().state is IncidentState.STUCK
        assert [c.what for c in gpu.told() if c.urgent] == ["stuck"]
        assert "restart of qwen failed: the job timed out" in gpu.told()[-1].why
        for _ in range(3):
            gpu.wait(hours=12)
            gpu.wait(hours=12)
        assert gpu.words().count("reminder") == 3
        gpu.see()
        assert gpu.words().count("stuck") == 1

    def test_a_finding_after_the_last_step_was_proved_is_stuck_too(self) -> None:
        gpu = Chronicle(ladder("restart"))
        gpu.see()
        gpu.end("restart", "proved")
        gpu.wait(hours=1)
        gpu.see()
        assert gpu.incident().state is IncidentState.STUCK

    @pytest.mark.parametrize("resolve", ["quiet", "cleared"])
    def test_where_time_or_a_probe_decides_nothing_is_stuck(self, resolve: str) -> None:
        gpu = Chronicle(ladder("restart", resolve=resolve))
        gpu.see()
        gpu.end("restart", "failed")
        assert gpu.incident().state is IncidentState.OPEN

    def test_a_ladder_that_only_tells_is_not_stuck(self) -> None:
        gpu = Chronicle(ladder("evidence", "notify"))
        gpu.see()
        gpu.end("evidence", "proved")
        gpu.end("notify", "proved")
        assert gpu.incident().state is IncidentState.OPEN


class TestServices:
    def test_one_request_for_each_service_and_one_end(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(services=("qwen", "llama"))
        assert gpu.asked() == ["restart of qwen", "restart of llama"]
        gpu.report("1.1", "running")
        gpu.report("1.1", "proved", "http 200")
        assert "step-ended" not in gpu.words()
        gpu.report("1.2", "running")
        gpu.report("1.2", "failed", "exit 1")
        assert gpu.asked()[-1] == "reboot"
        (ended,) = [c for c in gpu.told() if c.what == "step-ended"]
        assert ended.why == "restart of qwen proved: http 200; restart of llama failed: exit 1"

    def test_where_no_service_is_known_the_step_is_skipped(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(services=())
        assert gpu.asked() == ["reboot"]
        assert "restart skipped: no service of ours uses it" in [c.why for c in gpu.told()]

    def test_an_action_that_is_not_loaded_is_skipped(self) -> None:
        gpu = Chronicle(ladder("teleport", "reboot"))
        gpu.see()
        assert gpu.asked() == ["reboot"]
        assert "teleport skipped: not loaded on this host (bandog plugins says why)" in [c.why for c in gpu.told()]


class TestRequests:
    def test_names_in_the_arguments_are_filled_in(self) -> None:
        step = Step(do="restart", with_={"note": "$kind $subject on $host: $xid, $$5 $nothing#$incident"})
        gpu = Chronicle(ladder(step))
        gpu.see()
        (request,) = gpu.open_requests()
        assert request.with_ == {"note": f"nvidia.xid {E5} on gpu07: 94, $5 #1"}
        assert (request.id, request.policy, request.found_at) == ("1.1", "ecc", gpu.now)

    def test_a_policy_may_only_be_stricter(self) -> None:
        for mode, wanted in ((None, "enforce"), ("observe", "observe"), (("reboot",), "observe")):
            gpu = Chronicle(ladder("restart", mode=mode))
            gpu.see()
            assert gpu.open_requests()[0].mode == wanted

    def test_disruptive_steps_are_told_when_they_run_and_others_are_not(self) -> None:
        gpu = Chronicle(ladder("evidence", "restart"))
        gpu.see()
        gpu.end("evidence", "proved")
        gpu.report("1.2", "waiting", "held by ada until 14:00")
        assert gpu.incident().why == "restart of qwen waits: held by ada until 14:00"
        assert gpu.report("1.2", "waiting", "held by ada until 14:00") == ()
        gpu.report("1.2", "running")
        gpu.report("1.2", "proving")
        gpu.report("1.2", "proved")
        assert [(c.what, c.action) for c in gpu.told()] == [
            ("opened", None),
            ("step-started", "restart"),
            ("step-ended", "restart"),
        ]


class TestAfter:
    LATER = Step(do="restart", after=timedelta(minutes=10))

    def test_the_step_begins_when_its_time_has_come(self) -> None:
        gpu = Chronicle(ladder("evidence", self.LATER))
        gpu.see()
        gpu.wait(minutes=4)
        gpu.end("evidence", "proved")
        gpu.wait(minutes=5, seconds=59)
        assert gpu.asked() == ["evidence"]
        gpu.wait(seconds=1)
        assert gpu.asked() == ["evidence", "restart of qwen"]

    def test_a_finding_meanwhile_neither_hastens_nor_skips_it(self) -> None:
        gpu = Chronicle(ladder(self.LATER, "reboot"))
        gpu.see()
        gpu.wait(minutes=5)
        gpu.see()
        assert gpu.asked() == []
        gpu.wait(minutes=5)
        assert gpu.asked() == ["restart of qwen"]

    def test_it_is_not_begun_when_the_fault_has_cleared(self) -> None:
        gpu = Chronicle(ladder(self.LATER, "reboot"))
        gpu.see()
        gpu.wait(minutes=5)
        gpu.clear()
        gpu.wait(hours=1)
        assert gpu.asked() == []
        assert gpu.incident().why == "restart not begun: the fault has cleared"

    def test_a_fault_that_comes_back_has_its_whole_time_again(self) -> None:
        gpu = Chronicle(ladder(self.LATER, "reboot"))
        gpu.see()
        gpu.wait(minutes=5)
        gpu.clear()
        gpu.wait(minutes=30)
        gpu.see()
        assert gpu.asked() == []
        gpu.wait(minutes=10)
        assert gpu.asked() == ["restart of qwen"]

    def test_a_quiet_time_shorter_than_the_wait_does_not_end_the_incident(self) -> None:
        gpu = Chronicle(ladder(self.LATER, quiet=timedelta(minutes=1)))
        gpu.see()
        gpu.wait(minutes=9)
        assert gpu.incident().state is IncidentState.OPEN
        gpu.wait(minutes=1)
        assert gpu.asked() == ["restart of qwen"]


class TestLimit:
    ONCE = Step(do="restart", limit=Rate(count=1, per=timedelta(days=7)))

    def test_a_step_over_its_limit_is_exhausted_and_the_next_one_begins(self) -> None:
        gpu = Chronicle(ladder(self.ONCE, "reboot", quiet=timedelta(hours=1)))
        gpu.see()
        gpu.end("restart", "proved")
        gpu.wait(hours=2)
        assert gpu.incident(1).state is IncidentState.RESOLVED
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "reboot"]
        (ended,) = [c for c in gpu.told() if c.end is EXHAUSTED]
        assert ended.why == "restart not done: its limit of 1 per 7d is used up"

    def test_a_limit_survives_a_restart_and_a_clock_that_begins_in_the_year_2000(self) -> None:
        gpu = Chronicle(ladder(self.ONCE, "reboot", quiet=timedelta(hours=1)))
        gpu.see()
        gpu.end("restart", "proved")
        gpu.wait(hours=2)
        gpu.now = gpu.later(gpu.now, days=-9000)
        gpu.restart(boot="boot-2")
        gpu.now = gpu.now.__class__(
            boot_id="boot-2",
            boottime=timedelta(minutes=1),
            utc=gpu.now.utc + timedelta(days=30000),
            synced=False,
        )
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "reboot"]

    def test_it_frees_when_the_time_has_provably_passed(self) -> None:
        gpu = Chronicle(ladder(self.ONCE, quiet=timedelta(hours=1)))
        gpu.see()
        gpu.end("restart", "proved")
        gpu.wait(days=7)
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "restart of qwen"]

    @pytest.mark.parametrize("end", ["skipped", "would"])
    def test_a_step_that_did_nothing_uses_none_of_it(self, end: str) -> None:
        gpu = Chronicle(ladder(self.ONCE, quiet=timedelta(hours=1), resolve="quiet"))
        gpu.see()
        gpu.end("restart", end)
        gpu.wait(hours=2)
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "restart of qwen"]


class TestDropped:
    def test_a_person_who_takes_over_stops_what_waits(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.ack()
        assert gpu.dropped == ["1.1"]
        gpu.wait(minutes=1)
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]

    def test_a_person_who_takes_over_lets_what_runs_finish_and_no_more(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.report("1.1", "running")
        gpu.ack()
        assert gpu.dropped == []
        gpu.report("1.1", "failed")
        assert gpu.asked() == ["restart of qwen"]
        assert gpu.incident().state is IncidentState.OPEN

    def test_a_cleared_fault_drops_what_waits_at_a_gate_and_its_return_asks_again(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.report("1.1", "waiting", "package operation")
        gpu.clear()
        assert gpu.dropped == ["1.1"]
        gpu.wait(minutes=1)
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "restart of qwen"]

    def test_evidence_is_taken_even_if_the_fault_clears_meanwhile(self) -> None:
        gpu = Chronicle(ladder("evidence", "restart"))
        gpu.see()
        gpu.clear()
        assert gpu.dropped == []

    def test_a_fault_that_cleared_during_the_evidence_is_not_acted_on_until_it_returns(self) -> None:
        gpu = Chronicle(ladder("evidence", "restart"))
        gpu.see()
        gpu.clear()
        gpu.end("evidence", "proved")
        assert gpu.asked() == ["evidence"]
        gpu.wait(minutes=1)
        gpu.see()
        assert gpu.asked() == ["evidence", "restart of qwen"]

    def test_once_something_was_done_a_cleared_fault_does_not_stop_the_ladder(self) -> None:
        """The restart itself may have made the fault vanish, and left the service dead."""
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.report("1.1", "running")
        gpu.clear()
        gpu.report("1.1", "failed")
        assert gpu.asked() == ["restart of qwen", "reboot"]
        assert not any(isinstance(change, RequestDropped) for change in gpu.changes)

    def test_nor_does_it_drop_the_rung_that_waits_after_what_was_done(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.end("restart", "failed")
        gpu.report("1.2", "waiting", "window")
        gpu.clear()
        assert gpu.dropped == []

    def test_a_request_that_ran_in_spite_of_being_dropped_is_believed(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.clear()
        gpu.report("1.1", "running")
        gpu.report("1.1", "proved", "http 200")
        assert gpu.incident().proved_step == 0

    def test_of_two_dropped_only_the_one_that_ran_counts(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(services=("qwen", "llama"))
        gpu.clear()
        gpu.report("1.2", "running")
        gpu.report("1.2", "proved", "http 200")
        assert gpu.incident().why == "restart of llama proved: http 200"
        assert gpu.incident().proved_step == 0

    def test_one_service_runs_and_the_other_is_dropped(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(services=("qwen", "llama"))
        gpu.report("1.1", "running")
        gpu.ack()
        assert gpu.dropped == ["1.2"]
        gpu.report("1.1", "proved")
        assert gpu.incident().step_state is PROVED


def test_an_action_may_prove_itself_without_being_disruptive() -> None:
    actions = {**ACTIONS, "canary": ActionTraits(disruptive=False)}
    gpu = Chronicle(ladder("canary", "restart"), actions=actions)
    gpu.see()
    gpu.end("canary", "proved")
    assert gpu.asked() == ["canary"]
    assert gpu.incident().proved_step == 0


def test_a_ladder_that_ends_in_a_page_pages_once() -> None:
    """The urgent notify step is the page; becoming stuck right after it is told, not paged again."""
    from bandog.domain.changes import ActionTraits, FindingSeen, IncidentChanged, RequestMade, StepReport
    from bandog.domain.engine import Engine
    from bandog.domain.model import Finding, Severity, StepState
    from bandog.domain.policy import Match, Policy, Step
    from bandog.testing import FakeClock

    policy = Policy(
        name="p",
        match=Match(kinds=("test.fault",)),
        steps=(Step(do="restart"), Step(do="notify", with_={"urgent": True})),
    )
    traits = {"restart": ActionTraits(), "notify": ActionTraits(disruptive=False, proves=False)}
    now = FakeClock().now()
    engine = Engine((policy,), traits)
    finding = Finding(kind="test.fault", subject="host", severity=Severity.ERROR, at=now, live=True)
    (first,) = [one for one in engine.apply(FindingSeen(finding=finding), now) if isinstance(one, RequestMade)]
    failed = engine.apply(StepReport(request=first.request.id, state=StepState.FAILED, why="no"), now)
    (page,) = [one for one in failed if isinstance(one, RequestMade)]
    done = engine.apply(StepReport(request=page.request.id, state=StepState.PROVED, why="paged"), now)
    (stuck,) = [one for one in done if isinstance(one, IncidentChanged) and one.what == "stuck"]
    assert (stuck.tell, stuck.urgent) == (True, False)
