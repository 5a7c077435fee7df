"""How incidents end: proved, quiet, cleared, taken over, or not at all."""

from __future__ import annotations

from datetime import timedelta

from chronicle import Chronicle, ladder

from bandog.domain.model import IncidentState

HOUR = timedelta(hours=1)


def test_proved_and_quiet_resolves() -> None:
    gpu = Chronicle(ladder("restart", quiet=HOUR))
    gpu.see()
    gpu.wait(minutes=30)
    gpu.end("restart", "proved")
    gpu.wait(minutes=59)
    assert gpu.incident().state is IncidentState.OPEN
    gpu.wait(minutes=1)
    assert gpu.incident().state is IncidentState.RESOLVED
    assert gpu.told()[-1].what == "resolved"


def test_a_finding_begins_the_quiet_time_anew() -> None:
    gpu = Chronicle(ladder("notify", quiet=HOUR, resolve="quiet"))
    gpu.see()
    gpu.end("notify", "proved")
    gpu.wait(minutes=59)
    gpu.see()
    gpu.wait(minutes=59)
    assert gpu.incident().state is IncidentState.OPEN
    gpu.wait(minutes=1)
    assert gpu.incident().state is IncidentState.RESOLVED


def test_without_proof_time_makes_it_unresolved_and_reminds_every_day() -> None:
    gpu = Chronicle(ladder("restart", "reboot", quiet=HOUR))
    gpu.see()
    gpu.end("restart", "would")
    gpu.wait(hours=1)
    assert gpu.incident().state is IncidentState.UNRESOLVED
    assert gpu.told()[-1].what == "unresolved"
    gpu.wait(hours=24)
    assert gpu.told()[-1].what == "reminder"
    gpu.see()
    assert gpu.incident().state is IncidentState.OPEN
    assert gpu.asked() == ["restart of qwen", "reboot"]


def test_a_proof_of_an_earlier_step_does_not_end_it() -> None:
    gpu = Chronicle(ladder("restart", "reboot", quiet=HOUR))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.wait(minutes=30)
    gpu.see()
    gpu.end("reboot", "would")
    gpu.wait(hours=1)
    assert gpu.incident().state is IncidentState.UNRESOLVED


def test_a_step_under_way_holds_the_incident_open() -> None:
    gpu = Chronicle(ladder("restart", quiet=HOUR, resolve="quiet"))
    gpu.see()
    gpu.report("1.1", "running")
    gpu.wait(hours=2)
    assert gpu.incident().state is IncidentState.OPEN


def test_resolve_cleared_needs_the_clearing_and_the_quiet() -> None:
    gpu = Chronicle(ladder("notify", quiet=HOUR, resolve="cleared"))
    gpu.see()
    gpu.end("notify", "proved")
    gpu.wait(hours=50)
    assert gpu.incident().state is IncidentState.OPEN
    gpu.see()
    gpu.clear()
    assert not gpu.incident().raised
    gpu.wait(minutes=59)
    assert gpu.incident().state is IncidentState.OPEN
    gpu.wait(minutes=1)
    assert gpu.incident().state is IncidentState.RESOLVED


def test_a_clearing_ends_a_stuck_incident_at_once() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see()
    gpu.end("restart", "failed", "unkillable")
    assert gpu.incident().state is IncidentState.STUCK
    gpu.clear()
    assert gpu.incident().state is IncidentState.RESOLVED


def test_a_clearing_ends_an_unresolved_incident_and_quiet_after_it_an_open_one() -> None:
    gpu = Chronicle(ladder("restart", quiet=HOUR))
    gpu.see()
    gpu.end("restart", "would")
    gpu.wait(hours=1)
    gpu.clear()
    assert gpu.incident(1).state is IncidentState.RESOLVED
    gpu.see()
    gpu.end("restart", "would")
    gpu.clear()
    gpu.wait(hours=1)
    assert gpu.incident(2).state is IncidentState.RESOLVED


def test_glued_text_clears_nothing() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see()
    assert gpu.clear(facts={"glued": True}) == ()
    assert gpu.incident().raised


def test_old_news_of_a_clearing_does_not_clear_what_came_back_since() -> None:
    gpu = Chronicle(ladder("restart"))
    before = gpu.now
    gpu.wait(minutes=1)
    gpu.see()
    gpu.clear(at=before, live=False)
    assert gpu.incident().raised


def test_a_person_who_took_over_ends_it_by_time_without_reminders() -> None:
    gpu = Chronicle(ladder("restart", quiet=HOUR))
    gpu.see()
    gpu.end("restart", "failed")
    gpu.wait(hours=30)
    reminders = gpu.words().count("reminder")
    gpu.ack(by="ada")
    gpu.wait(minutes=59)
    assert gpu.incident().state is IncidentState.STUCK
    gpu.see()
    gpu.wait(minutes=1)
    gpu.wait(minutes=59)
    assert gpu.incident().state is IncidentState.RESOLVED
    assert gpu.words().count("reminder") == reminders
    assert gpu.incident().why == "quiet for 1h since ada took over"


def test_nobody_is_reminded_of_what_a_person_took_over() -> None:
    gpu = Chronicle(ladder("restart", quiet=72 * HOUR))
    gpu.see()
    gpu.end("restart", "failed")
    gpu.ack(by="ada")
    gpu.wait(hours=48)
    assert "reminder" not in gpu.words()


def test_a_person_takes_over_once() -> None:
    gpu = Chronicle(ladder("restart"))
    gpu.see()
    gpu.ack(by="ada")
    assert gpu.ack(by="grace") == ()


def test_the_clock_of_the_wall_ends_nothing() -> None:
    gpu = Chronicle(ladder("restart", quiet=HOUR))
    gpu.see()
    gpu.end("restart", "proved")
    gpu.restart(boot="boot-2")
    gpu.now = gpu.now.__class__(
        boot_id="boot-2",
        boottime=timedelta(minutes=59),
        utc=gpu.now.utc + timedelta(days=400),
        synced=False,
    )
    gpu.wait(seconds=1)
    assert gpu.incident().state is IncidentState.OPEN
    gpu.wait(minutes=1)
    assert gpu.incident().state is IncidentState.RESOLVED
