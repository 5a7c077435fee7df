"""The texts: what was seen, done and comes next; no word breaks them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from bandog.domain.changes import IncidentChanged
from bandog.domain.model import Finding, Incident, IncidentState, Severity, StepState
from bandog.domain.policy import Match, Policy, Step
from bandog.runtime import messages as texts
from bandog.testing import FakeClock

CLOCK = FakeClock()
POLICY = Policy(
    name="xid-contained-ecc",
    match=Match(kinds=("nvidia.xid",)),
    quiet=timedelta(hours=24),
    steps=(Step(do="evidence"), Step(do="restart", after=timedelta(minutes=10)), Step(do="notify")),
)


def incident(**fields: Any) -> Incident:
    return samples.incident(**{"number": 12, "facts": {"xid": 94, "pid": 4711}, **fields})


def told(what: str, about: Incident | None = None, **fields: Any) -> str:
    return texts.text_of(IncidentChanged(incident=about or incident(), what=what, **fields), POLICY)


def test_the_title_names_host_incident_severity_fault_and_service() -> None:
    assert texts.title_of(incident(), "gpu07") == "[gpu07] #12 error: Xid 94 on gpu 0000:e5:00.0 (qwen)"


def test_a_drill_says_so_in_title_and_text() -> None:
    assert texts.title_of(incident(drill=True), "gpu07").startswith("[DRILL] [gpu07]")
    assert told("opened", incident(drill=True)).startswith("[DRILL] This is an exercise")


def test_an_opened_incident_tells_what_was_seen_and_the_way_ahead() -> None:
    finding = Finding(
        kind="nvidia.xid",
        subject="gpu:0000:e5:00.0",
        severity=Severity.ERROR,
        at=CLOCK.now(),
        facts={"xid": 94, "text": "Contained: SM (0x1)"},
    )
    text = told("opened", finding=finding)
    assert text.splitlines() == [
        "Seen: Xid 94 on gpu 0000:e5:00.0",
        "Line: Contained: SM (0x1)",
        "Facts: xid=94",
        "Services: qwen",
        "Policy: xid-contained-ecc",
        "Next: evidence, then restart (after 10m), then notify",
    ]


def test_observe_says_what_would_have_been_done() -> None:
    text = told("step-ended", incident(step=1), action="restart", end=StepState.WOULD)
    assert text.splitlines()[0] == "would have restarted qwen (mode: observe)"
    assert "Next: nothing until the next finding" in text


def test_the_words_of_the_executor_are_kept() -> None:
    text = told(
        "step-ended",
        incident(step=1),
        action="restart",
        end=StepState.WOULD,
        why="would have restarted qwen (mode: observe)",
    )
    assert text.count("observe") == 1


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (StepState.PROVED, "Done and proved: restart qwen: it serves"),
        (StepState.FAILED, "Failed: restart qwen: it serves"),
        (StepState.SKIPPED, "Skipped: restart qwen: it serves"),
        (StepState.EXHAUSTED, "Not done, the limit is used up: restart qwen: it serves"),
    ],
)
def test_each_end_of_a_step_has_its_words(end: StepState, words: str) -> None:
    assert told("step-ended", incident(step=1), action="restart", end=end, why="it serves").startswith(words)


def test_after_a_proof_the_quiet_time_and_the_next_rung_are_told() -> None:
    text = told("step-ended", incident(step=1), action="restart", end=StepState.PROVED)
    assert text.endswith("Next: closed after 1d of quiet; if it comes back: notify")


@pytest.mark.parametrize(
    "what",
    [
        "joined",
        "step-waiting",
        "step-started",
        "step-proving",
        "cleared",
        "stuck",
        "reminder",
        "acked",
        "inhibited",
        "unresolved",
        "resolved",
        "unheard-of",
    ],
)
def test_every_change_has_a_headline(what: str) -> None:
    assert told(what, action="restart").splitlines()[0]


def test_the_footer_tells_how_to_look_and_how_to_stop_us() -> None:
    footer = texts.footer_of(incident())
    assert "bandog show 12" in footer
    assert "bandog hold qwen 2h" in footer
    assert "bandog hold xid-contained-ecc 2h" in texts.footer_of(incident(services=()))


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=50), max_size=20), st.text(max_size=80))
def test_no_fact_or_reason_breaks_a_text(facts: dict[str, str], why: str) -> None:
    for what in ("opened", "stuck", "step-ended"):
        text = told(what, incident(facts=facts, kind="task.hung", subject=f"task:{why}"), why=why, end=StepState.FAILED)
        assert len(text) <= texts.MAX_TEXT


def test_the_thread_of_an_incident_is_a_message_id_and_stays_the_same() -> None:
    first = texts.thread_of(incident(), "gpu07")
    assert first == texts.thread_of(incident(severity=Severity.CRITICAL, state=IncidentState.RESOLVED), "gpu07")
    assert first == "<incident-12.b007b007@gpu07.bandog>"
    assert " " not in texts.thread_of(incident(), "a b\n")


def test_a_message_about_a_gpu_carries_what_the_manufacturer_asks_for() -> None:
    facts = {
        "xid": 94,
        "serial": "16530",
        "part_number": "900-21010",
        "uuid": "GPU-5a",
        "history": "3 Xid 63 since 2 Oct 2026, 2 Xid 94 since 5 Nov 2026",
    }
    about = incident(facts=facts)
    for text in (told("opened", about), told("stuck", about), told("step-ended", about, action="relaunch")):
        assert "Card: serial 16530, part number 900-21010, UUID GPU-5a, slot 0000:e5:00.0" in text
        assert "History: 3 Xid 63 since 2 Oct 2026, 2 Xid 94 since 5 Nov 2026" in text
        assert "serial=" not in text
    assert "Card:" not in told("step-ended", about, action="restart")
