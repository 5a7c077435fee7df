"""Findings become incidents, and a whole story is told in one thread."""

from __future__ import annotations

from datetime import timedelta

import pytest
from chronicle import E5, START, Chronicle, ladder

from bandog.domain.changes import IncidentChanged, StepReport
from bandog.domain.engine import may_act
from bandog.domain.model import IncidentState, Severity, StepState
from bandog.domain.policy import FactTest, Match, Rate, Step


def test_a_dying_gpu_climbs_from_restart_to_a_person() -> None:
    """94 → restart proved → a second 94 within 24 h → relaunch → a third → reboot fails → stuck."""
    relaunch = Step(do="relaunch", with_={"without": "$subject"})
    chain = ladder("evidence", "restart", relaunch, Step(do="reboot", with_={"when": "window"}))
    gpu = Chronicle(chain, ladder("notify", name="remap", xid=(63,), resolve="quiet"))

    gpu.see(63)
    gpu.end("notify", "proved")
    gpu.wait(days=3)
    assert gpu.incident(1).state is IncidentState.RESOLVED

    gpu.see(94)
    assert gpu.asked()[-1] == "evidence"
    gpu.end("evidence", "proved", "bundle 2.tar.zst")
    gpu.end("restart", "proved", "http 200 after 34 s")
    assert gpu.incident(2).why == "restart of qwen proved: http 200 after 34 s"
    assert gpu.incident(2).proved_step == 1

    gpu.wait(hours=20)
    gpu.see(94)
    (request,) = gpu.open_requests()
    assert (request.action, request.service, request.step) == ("relaunch", "qwen", 2)
    assert request.with_ == {"without": E5}
    gpu.end("relaunch", "proved", "a completion came back")

    gpu.wait(hours=23)
    assert gpu.incident(2).state is IncidentState.OPEN
    gpu.see(94)
    gpu.end("reboot", "failed", "logind refused")
    assert gpu.incident(2).state is IncidentState.STUCK
    stuck = gpu.told()[-1]
    assert (stuck.what, stuck.urgent, stuck.notify) == ("stuck", True, ("oncall",))

    gpu.wait(hours=23)
    assert gpu.told()[-1] is stuck
    gpu.wait(hours=1)
    assert gpu.told()[-1].what == "reminder"

    gpu.ack(2)
    gpu.wait(hours=25)
    assert gpu.incident(2).state is IncidentState.RESOLVED
    words = [change.what for change in gpu.told() if change.incident.id == 2]
    steps = ["step-started", "step-ended"] * 3
    assert words == ["opened", *steps, "stuck", "reminder", "resolved"]


def test_a_resolved_incident_is_followed_by_a_new_one_that_starts_at_the_bottom() -> None:
    gpu = Chronicle(ladder("restart", "reboot"))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.wait(hours=24)
    assert gpu.incident(1).why == "restart proved, and quiet for 1d"
    gpu.see()
    assert gpu.incident(2).step == 0
    assert gpu.asked() == ["restart of qwen", "restart of qwen"]


def test_a_finding_that_no_policy_takes_opens_nothing() -> None:
    gpu = Chronicle(ladder("restart"))
    assert gpu.see(13) == ()
    assert gpu.engine.incidents == {}


def test_the_first_policy_that_matches_takes_the_finding() -> None:
    gpu = Chronicle(ladder("evidence", name="first"), ladder("restart", name="second"))
    gpu.see()
    assert gpu.incident().policy == "first"


def test_each_subject_has_its_own_incident() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see(subject="gpu:0000:e5:00.0")
    gpu.see(subject="gpu:0000:17:00.0", services=("llama",))
    assert sorted(gpu.asked()) == ["restart of llama", "restart of qwen"]


def test_the_severity_is_the_policys_else_the_findings_and_rises() -> None:
    gpu = Chronicle(ladder("evidence"), ladder("evidence", name="set", xid=(31,), severity=Severity.INFO))
    gpu.see(severity=Severity.WARNING)
    assert gpu.incident(1).severity is Severity.WARNING
    gpu.wait(minutes=1)
    gpu.see(severity=Severity.CRITICAL)
    gpu.wait(minutes=1)
    gpu.see(severity=Severity.ERROR)
    assert gpu.incident(1).severity is Severity.CRITICAL
    gpu.see(31, severity=Severity.CRITICAL)
    assert gpu.incident(2).severity is Severity.INFO


def test_an_incident_has_the_newest_facts_and_every_service_in_order() -> None:
    gpu = Chronicle(ladder("evidence"))
    gpu.see(services=("qwen",), facts={"pid": 1})
    gpu.wait(minutes=1)
    gpu.see(services=("llama", "qwen"), facts={"pid": 2})
    assert gpu.incident().services == ("qwen", "llama")
    assert gpu.incident().facts["pid"] == 2
    assert gpu.incident().findings == 2


class TestWhatMayAct:
    def test_only_a_live_fresh_unglued_finding_of_this_boot_may_act(self) -> None:
        gpu = Chronicle()
        assert may_act(gpu.finding(), START)
        assert not may_act(gpu.finding(live=False), START)
        assert not may_act(gpu.finding(facts={"glued": True}), START)
        assert not may_act(gpu.finding(), START.plus(timedelta(minutes=5, seconds=1)))
        assert not may_act(gpu.finding(), gpu.now.__class__(**{**_fields(START), "boot_id": "boot-2"}))

    @pytest.mark.parametrize("old", [{"live": False}, {"at": START.plus(-timedelta(minutes=6))}])
    def test_history_is_told_and_recorded_but_nothing_disruptive_begins(self, old: dict[str, object]) -> None:
        gpu = Chronicle(ladder("evidence", "restart", "reboot"))
        gpu.see(**old)
        gpu.end("evidence", "proved")
        assert gpu.asked() == ["evidence"]
        assert gpu.incident().step_state is StepState.SKIPPED
        assert "never acts on it" in gpu.incident().why
        assert gpu.told()[0].what == "opened"
        assert gpu.incident().state is IncidentState.OPEN

    def test_the_fault_coming_back_live_begins_the_step_that_history_could_not(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(live=False)
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]

    def test_glued_text_begins_no_step_at_all_and_is_no_more_than_a_warning(self) -> None:
        gpu = Chronicle(ladder("notify", "restart", severity=Severity.CRITICAL))
        gpu.see(facts={"glued": True}, severity=Severity.WARNING)
        assert gpu.asked() == []
        assert gpu.incident().severity is Severity.WARNING
        assert gpu.told()[0].what == "opened"
        gpu.wait(hours=25)
        assert gpu.incident().state is IncidentState.RESOLVED

    def test_glued_text_neither_climbs_nor_changes_the_facts_of_a_real_incident(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(facts={"pid": 10})
        gpu.end("restart", "proved")
        gpu.wait(minutes=1)
        gpu.see(facts={"glued": True, "pid": 666}, services=("victim",))
        assert gpu.asked() == ["restart of qwen"]
        assert gpu.incident().facts["pid"] == 10
        assert gpu.incident().services == ("qwen",)

    def test_history_read_late_does_not_change_the_facts_of_a_live_incident(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(facts={"pid": 10})
        gpu.wait(minutes=1)
        gpu.see(live=False, facts={"pid": 9})
        assert gpu.incident().facts["pid"] == 10
        assert gpu.incident().findings == 2

    def test_a_real_finding_after_glued_text_begins_the_ladder(self) -> None:
        gpu = Chronicle(ladder("restart"))
        gpu.see(facts={"glued": True}, severity=Severity.WARNING)
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]


class TestCount:
    THREE = Match(kinds=("nvidia.xid",), count=Rate(count=3, per=timedelta(minutes=10)))

    def test_an_incident_opens_when_the_bucket_is_full(self) -> None:
        gpu = Chronicle(ladder("restart", match=self.THREE))
        for _ in range(2):
            gpu.see()
            gpu.wait(seconds=30)
        assert gpu.engine.incidents == {}
        (count,) = gpu.engine.counts(gpu.now)
        assert (count.policy, count.subject, count.needs) == ("ecc", E5, 3)
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]

    def test_two_are_counted_too(self) -> None:
        twice = Match(kinds=("nvidia.xid",), count=Rate(count=2, per=timedelta(minutes=10)))
        gpu = Chronicle(ladder("restart", match=twice))
        gpu.see()
        assert gpu.engine.incidents == {}
        gpu.wait(seconds=30)
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]

    def test_a_bucket_leaks(self) -> None:
        gpu = Chronicle(ladder("restart", match=self.THREE))
        for _ in range(8):
            gpu.see()
            gpu.wait(minutes=4)
        assert gpu.engine.incidents == {}

    def test_a_finding_weighs_its_count(self) -> None:
        gpu = Chronicle(ladder("restart", match=self.THREE))
        gpu.see(facts={"count": 2})
        assert gpu.engine.incidents == {}
        gpu.see(facts={"count": 1})
        assert gpu.asked() == ["restart of qwen"]

    def test_glued_text_fills_a_bucket_of_its_own(self) -> None:
        gpu = Chronicle(ladder("restart", match=self.THREE))
        for _ in range(2):
            gpu.see(facts={"glued": True})
            gpu.wait(seconds=10)
        gpu.see()
        assert gpu.engine.incidents == {}

    def test_a_bucket_survives_a_restart_of_the_agent(self) -> None:
        gpu = Chronicle(ladder("restart", match=self.THREE))
        for _ in range(2):
            gpu.see()
            gpu.wait(seconds=30)
        gpu.restart()
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]

    def test_a_further_event_of_an_open_incident_climbs_only_with_a_full_bucket(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot", match=self.THREE))
        gpu.see(facts={"count": 3})
        gpu.end("restart", "proved")
        for _ in range(2):
            gpu.wait(seconds=30)
            gpu.see()
        assert gpu.asked() == ["restart of qwen"]
        gpu.wait(seconds=30)
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "reboot"]


class TestBursts:
    def test_later_lines_of_a_burst_raise_the_count_and_begin_nothing(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.end("restart", "proved")
        for _ in range(40):
            gpu.now = gpu.now.plus(timedelta(milliseconds=100))
            gpu.see()
        assert gpu.asked() == ["restart of qwen"]
        assert gpu.incident().findings == 41
        assert gpu.incident().last == gpu.now

    def test_a_flood_is_noted_once_a_second_and_its_end_by_the_tick(self) -> None:
        gpu = Chronicle(ladder("restart"))
        gpu.see()
        before = len(gpu.changes)
        for _ in range(1000):
            gpu.see()
        assert gpu.changes[before:] == []
        gpu.wait(seconds=1)
        (noted,) = [c for c in gpu.changes[before:] if isinstance(c, IncidentChanged)]
        assert (noted.what, noted.tell, noted.incident.findings) == ("finding", False, 1001)

    def test_a_cleared_fault_that_comes_back_within_the_window_is_a_new_event(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see()
        gpu.end("restart", "proved")
        gpu.clear()
        gpu.now = gpu.now.plus(timedelta(seconds=1))
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "reboot"]

    def test_a_forged_line_does_not_swallow_the_real_one(self) -> None:
        gpu = Chronicle(ladder("restart"))
        gpu.see(facts={"glued": True})
        gpu.see()
        assert gpu.asked() == ["restart of qwen"]


class TestWhatAProbeRepeats:
    def test_a_fault_that_a_probe_states_again_and_again_does_not_climb(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(record=None)
        gpu.end("restart", "proved")
        for _ in range(5):
            gpu.wait(minutes=15)
            gpu.see(record=None)
        assert gpu.asked() == ["restart of qwen"]
        assert gpu.incident().findings == 6

    def test_after_it_had_cleared_it_climbs(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(record=None)
        gpu.end("restart", "proved")
        gpu.wait(minutes=15)
        gpu.clear(record=None)
        gpu.wait(minutes=15)
        gpu.see(record=None)
        assert gpu.asked() == ["restart of qwen", "reboot"]


class TestDrill:
    def test_a_drill_is_never_mixed_with_the_real_incident(self) -> None:
        gpu = Chronicle(ladder("restart", "reboot"))
        gpu.see(drill=True)
        gpu.see()
        assert gpu.incident(1).drill and not gpu.incident(2).drill
        assert [r.drill for r in gpu.open_requests()] == [True, False]

    def test_a_drill_uses_no_step_limit_of_the_real_one(self) -> None:
        once = Step(do="restart", limit=Rate(count=1, per=timedelta(days=1)))
        gpu = Chronicle(ladder(once))
        gpu.see(drill=True)
        gpu.see()
        assert gpu.asked() == ["restart of qwen", "restart of qwen"]

    def test_a_drill_ends_by_time_and_is_no_lasting_reminder(self) -> None:
        gpu = Chronicle(ladder("restart"))
        gpu.see(drill=True)
        gpu.end("restart", "failed")
        gpu.wait(hours=25)
        assert gpu.incident().state is IncidentState.RESOLVED


def test_reports_about_nothing_that_is_known_change_nothing() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see()
    for name in ("", "x", "1", "1.9", "9.1", "²." * 3, "1" * 5000, "1.1.1"):
        assert gpu.apply(StepReport(request=name, state=StepState.PROVED)) == ()
    assert gpu.ack(99) == ()


def test_a_thousand_open_incidents_are_enough() -> None:
    gpu = Chronicle(ladder("evidence"))
    for number in range(1005):
        gpu.see(subject=f"task:{number}")
    assert len(gpu.engine.incidents) == 1000
    assert gpu.engine.refused == 5


def test_forged_text_takes_no_room_from_real_faults() -> None:
    """Any user can get a thousand addresses printed inside mount options; a real fault must still be seen."""
    gpu = Chronicle(ladder("evidence"))
    for number in range(1005):
        gpu.see(subject=f"gpu:{number}", facts={"xid": 94, "glued": True})
    assert len(gpu.engine.incidents) == 100
    assert gpu.engine.refused == 905
    gpu.see(subject="gpu:real")
    assert len(gpu.engine.incidents) == 101


def test_what_the_agent_says_of_itself_always_finds_room() -> None:
    gpu = Chronicle(ladder("evidence"))
    for number in range(1000):
        gpu.see(subject=f"task:{number}")
    gpu.see(subject="agent")
    assert len(gpu.engine.incidents) == 1001


def test_ended_incidents_leave_the_memory_after_a_while() -> None:
    gpu = Chronicle(ladder("restart", quiet=timedelta(minutes=1)))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.wait(minutes=1)
    assert gpu.incident().state is IncidentState.RESOLVED
    assert [key for key in gpu.memory if key.startswith("engine.case")] == []
    gpu.wait(minutes=11)
    assert gpu.engine.incidents == {}


def test_an_inhibited_incident_leaves_the_memory_after_its_cause() -> None:
    lost = ladder("reboot", name="lost", xid=(79,), inhibits=("nvidia.xid",), quiet=timedelta(minutes=1))
    gpu = Chronicle(lost, ladder("restart"))
    gpu.see(79)
    gpu.see(94)
    gpu.end("reboot", "proved")
    for _ in range(3):
        gpu.wait(minutes=11)
    assert gpu.engine.incidents == {}
    assert list(gpu.memory) == ["engine.last_incident"]


def test_numbers_go_on_after_a_restart() -> None:
    gpu = Chronicle(ladder("restart", quiet=timedelta(minutes=1)))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.wait(minutes=1)
    gpu.wait(minutes=11)
    gpu.saved.clear()
    gpu.restart()
    gpu.see()
    assert list(gpu.engine.incidents) == [2]


def test_a_match_on_several_facts_needs_them_all() -> None:
    both = Match(kinds=("nvidia.*",), facts={"xid": FactTest(any_of=(94,)), "row": FactTest(minimum=3)})
    gpu = Chronicle(ladder("evidence", match=both))
    assert gpu.see() == ()
    gpu.see(facts={"row": 4}, at=gpu.later(gpu.now, seconds=6))
    assert gpu.incident().facts["row"] == 4


def _fields(instant: object) -> dict[str, object]:
    return {name: getattr(instant, name) for name in ("boottime", "utc", "synced")}
