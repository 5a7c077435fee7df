"""The log detector for hung tasks, against recorded and constructed kernel lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bandog import Finding, Record, Severity
from bandog.testing import FakeClock, feed, kernel_records
from bandog_plugins.detectors.hung_task import HungTask

CORPUS = Path(__file__).parents[2] / "corpus"
SAMPLES: list[dict[str, Any]] = yaml.safe_load((CORPUS / "kernel-samples.yaml").read_text())["samples"]
HUNG = [one for one in SAMPLES if one["kind"] == "hung_task"]
HEAD = "INFO: task VLLM::Worker_TP:48213 blocked for more than 122 seconds."
STATE = "task:VLLM::Worker_TP state:D stack:0     pid:48213 tgid:48000 ppid:47990  flags:0x00080001"
TRACE = ["Call Trace:", " <TASK>", " uvm_va_space_destroy+0x4c/0x5e0 [nvidia_uvm]", " </TASK>"]


def expectations(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (block, facts) of a corpus file: `#=` begins a block and holds its facts, `#` is a remark."""
    facts: dict[str, Any] | None = None
    block: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("#="):
            if facts is not None:
                yield "\n".join(block), facts
            facts, block = json.loads(line[2:]), []
        elif line and not line.startswith("# "):
            block.append(line)
    if facts is not None:
        yield "\n".join(block), facts


CASES = [(path.stem, *case) for path in sorted((CORPUS / "hung-task").glob("*.log")) for case in expectations(path)]


def plain(finding: Finding) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in finding.facts.items()}


def as_facts(expected: dict[str, Any]) -> dict[str, Any]:
    """The sample's words in ours."""
    words = {"top_frame": "where"}
    facts = {words.get(name, name): value for name, value in expected.items() if name not in ("kind", "blocker")}
    blocker = expected.get("blocker", {})
    facts |= {
        "blocker_type": blocker.get("type"),
        "holder": blocker.get("owner_comm"),
        "holder_pid": blocker.get("owner_pid"),
    }
    return {name: value for name, value in facts.items() if value is not None}


@pytest.mark.parametrize("sample", HUNG, ids=lambda one: str(one["id"]))
def test_every_recorded_block_gives_its_fields(sample: dict[str, Any]) -> None:
    findings = feed(HungTask(), list(sample["lines"]))
    assert len(findings) == len(sample["expect"])
    for finding, expected in zip(findings, sample["expect"], strict=True):
        assert finding.kind == "task.hung"
        assert finding.subject == f"task:{expected['comm']}"
        wanted = as_facts(expected)
        assert {name: plain(finding).get(name) for name in wanted} == wanted
        assert finding.facts["by"] == "khungtaskd"


def test_all_recorded_blocks_at_once_give_the_same_findings() -> None:
    lines = [line for one in HUNG for line in one["lines"]]
    alone = [finding.facts for one in HUNG for finding in feed(HungTask(), list(one["lines"]))]
    assert [finding.facts for finding in feed(HungTask(), lines)] == alone


@pytest.mark.parametrize(
    "sample", [one for one in SAMPLES if one["kind"] != "hung_task"], ids=lambda one: str(one["id"])
)
def test_no_other_recorded_line_is_a_hung_task(sample: dict[str, Any]) -> None:
    findings = feed(HungTask(), list(sample.get("lines", ())))
    assert not [one for one in findings if one.kind == "task.hung"]


@pytest.mark.parametrize(("file", "block", "facts"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_a_block_of_the_corpus_gives_its_facts(file: str, block: str, facts: dict[str, Any]) -> None:
    (finding,) = feed(HungTask(), block)
    assert {name: plain(finding).get(name) for name in facts} == facts


def test_a_whole_corpus_file_gives_one_finding_a_block() -> None:
    for path in (CORPUS / "hung-task").glob("*.log"):
        text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
        assert len(feed(HungTask(), text)) == len(list(expectations(path)))


def test_near_misses_give_nothing() -> None:
    assert feed(HungTask(), (CORPUS / "hung-task/near-misses.log").read_text()) == []


@pytest.mark.parametrize(
    "comm", ["a b", "a:1", "(x)", "x>y", "new\nline", "", "a:1 blocked for", "ünïcödé", "\udcff\udcfe"]
)
def test_a_name_may_hold_anything_and_the_pid_follows_the_last_colon(comm: str) -> None:
    (finding,) = feed(HungTask(), [f"INFO: task {comm}:4711 blocked for more than 122 seconds."])
    assert finding.subject == f"task:{comm}"
    assert finding.facts["pid"] == 4711
    assert "glued" not in finding.facts


@pytest.mark.parametrize(
    "text",
    [
        f'EXT4-fs: Unrecognized mount option "{HEAD}" or missing value',
        f"foo[1]: segfault at 0 {HEAD}",
        f"x\n{HEAD}",
        f"{HEAD} and more",
    ],
)
def test_a_headline_that_does_not_stand_alone_is_glued_and_opens_no_block(text: str) -> None:
    detector = HungTask()
    (finding,) = feed(detector, [text, *TRACE])
    assert finding.facts["glued"] is True
    assert finding.severity is Severity.WARNING
    assert "class" not in finding.facts
    assert not detector.open


def test_lines_of_other_facilities_are_not_read() -> None:
    detector = HungTask()
    (record,) = kernel_records([HEAD])
    user = Record(text=HEAD, at=record.at, source="kmsg", kernel=False)
    assert list(detector.feed(user)) == []
    assert not detector.open
    list(detector.feed(record))
    list(detector.feed(Record(text=TRACE[2], at=record.at, source="kmsg", kernel=False)))
    (finding,) = detector.flush(record.at.plus(timedelta(seconds=5)))
    assert "where" not in finding.facts


def test_foreign_records_between_the_lines_do_not_end_a_block() -> None:
    lines = [HEAD, "usb 1-1: new device", STATE, *TRACE[:2], "EDAC MC0: 1 CE memory read error", *TRACE[2:]]
    (finding,) = feed(HungTask(), lines)
    assert finding.facts["tgid"] == 48000
    assert finding.facts["where"] == "uvm_va_space_destroy"


def test_a_dump_of_another_task_in_the_middle_lends_no_frames() -> None:
    other = [
        "task:bash            state:D stack:0     pid:9 tgid:9 ppid:1 flags:0x0",
        "Call Trace:",
        " nfs_wait+0x1/0x2 [nfs]",
    ]
    (finding,) = feed(HungTask(), [HEAD, STATE, *other])
    assert "where" not in finding.facts
    assert finding.facts["class"] == "other"


@pytest.mark.parametrize(
    "first_state",
    [
        "task:bash            state:D stack:0     pid:9     tgid:9     ppid:1      flags:0x00000000",
        "bash            D    0     9      1 0x00000000",
    ],
)
def test_the_state_line_of_another_task_is_not_taken_for_ours(first_state: str) -> None:
    (finding,) = feed(HungTask(), [HEAD, first_state, STATE, *TRACE])
    assert (finding.facts["ppid"], finding.facts["where"]) == (47990, "uvm_va_space_destroy")


def test_frames_after_the_end_marker_are_somebody_elses() -> None:
    (finding,) = feed(HungTask(), [HEAD, STATE, *TRACE, " nfs_wait+0x1/0x2 [nfs]"])
    assert finding.facts["modules_in_stack"] == ("nvidia_uvm",)


def test_an_oops_after_a_block_without_end_marker_lends_no_frames() -> None:
    lines = [
        HEAD,
        STATE,
        "Call trace:",
        " foo+0x1/0x2",
        "BUG: unable to handle page fault",
        "Call trace:",
        " nfs_x+0x1/0x2",
    ]
    (finding,) = feed(HungTask(), lines)
    assert finding.facts["stack"] == ("foo",)


def test_the_block_stays_open_until_its_end_and_keeps_the_headline_as_its_record() -> None:
    detector, clock = HungTask(), FakeClock()
    records = kernel_records([HEAD, STATE, *TRACE], clock=clock)
    assert [list(detector.feed(record)) for record in records] == [[]] * len(records)
    assert detector.open
    (finding,) = detector.flush(clock.now().plus(timedelta(seconds=1)))
    assert not detector.open
    assert (finding.record, finding.line, finding.at) == (records[0].identity, 1, records[0].at)
    assert finding.live


def test_the_clock_does_not_cut_a_block_whose_lines_still_come() -> None:
    detector, clock = HungTask(), FakeClock()
    head, state, *_ = kernel_records([HEAD, STATE, *TRACE], clock=clock)
    list(detector.feed(head))
    assert list(detector.flush(head.at.plus(timedelta(milliseconds=100)))) == []
    list(detector.feed(state))
    (finding,) = detector.flush(state.at.plus(timedelta(seconds=1)))
    assert finding.facts["tgid"] == 48000


def test_a_gap_of_two_seconds_between_records_ends_a_block() -> None:
    detector, clock = HungTask(), FakeClock()
    list(detector.feed(kernel_records([HEAD], clock=clock)[0]))
    clock.advance(timedelta(seconds=3))
    (finding,) = detector.feed(kernel_records([STATE], clock=clock)[0])
    assert "tgid" not in finding.facts


def test_a_block_ends_after_many_records_even_if_the_clock_stands_still() -> None:
    detector = HungTask()
    (head, other) = kernel_records([HEAD, "noise"], step=timedelta())
    list(detector.feed(head))
    ended = [finding for _ in range(3000) if detector.open for finding in detector.feed(other)]
    assert len(ended) == 1


def test_repeats_of_a_report_are_one_burst_and_one_episode_and_a_new_wait_is_the_next() -> None:
    detector, clock = HungTask(), FakeClock()
    seen = []
    for seconds, later in ((122, 0), (245, 123), (122, 400)):
        clock.advance(timedelta(seconds=later))
        seen += feed(detector, [HEAD.replace("122", str(seconds))], clock=clock)
    assert [one.facts["episode"] for one in seen] == [1, 1, 2]
    assert {one.burst for one in seen} == {"48213"}
    assert {one.window for one in seen} == {timedelta(minutes=10)}


def test_two_sources_may_each_have_a_block_under_way() -> None:
    detector = HungTask()
    records = kernel_records([HEAD, STATE, *TRACE])
    late = [Record(text=one.text.replace("48213", "5"), at=one.at, source="journal") for one in records]
    for pair in zip(records, late, strict=True):
        for record in pair:
            assert list(detector.feed(record)) == []
    found = list(detector.flush(records[-1].at.plus(timedelta(seconds=9))))
    assert sorted(str(one.facts["pid"]) for one in found) == ["48213", "5"]
    assert {one.facts["where"] for one in found} == {"uvm_va_space_destroy"}


def test_suppressed_reports_make_the_log_blind() -> None:
    text = "Future hung task reports are suppressed, see sysctl kernel.hung_task_warnings"
    hung, blind = feed(HungTask(), [HEAD, STATE, *TRACE, text])
    assert (hung.kind, blind.kind) == ("task.hung", "agent.log-blind")
    assert blind.subject == "agent"


@pytest.mark.parametrize(
    ("frame", "seconds", "severity"),
    [
        ("uvm_x+0x1/0x2 [nvidia_uvm]", 122, Severity.ERROR),
        ("nfs_x+0x1/0x2 [nfs]", 122, Severity.WARNING),
        ("do_exit+0x1/0x2", 122, Severity.INFO),
        ("do_exit+0x1/0x2", 900, Severity.WARNING),
    ],
)
def test_severity_follows_the_class(frame: str, seconds: int, severity: Severity) -> None:
    (finding,) = feed(HungTask(), [HEAD.replace("122", str(seconds)), f" {frame}"])
    assert finding.severity is severity


def test_every_fact_is_declared_with_its_type() -> None:
    declared = HungTask.emits["task.hung"]
    for _, block, _ in CASES:
        for finding in feed(HungTask(), block):
            assert {name for name, value in finding.facts.items() if not isinstance(value, declared[name])} == set()


PIECES = st.sampled_from(
    [
        HEAD,
        STATE,
        *TRACE,
        "INFO: task ",
        "INFO: task a:1 is blocked on a mutex likely owned by task b:2.",
        "Workqueue: a b (c)",
        "Call trace:",
        "      Tainted: P    6.1 #1",
        "task: state:",
        "Future hung task reports are suppressed",
    ]
)


@given(st.lists(st.one_of(st.text(), PIECES, st.tuples(PIECES, st.text(max_size=20)).map("".join)), max_size=30))
def test_arbitrary_records_never_raise_and_never_leave_more_than_one_block(texts: list[str]) -> None:
    detector = HungTask()
    for finding in feed(detector, texts):
        assert finding.kind in HungTask.emits
    assert not detector.open


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=9))
def test_arbitrary_bytes_after_a_headline_never_raise(data: bytes, where: int) -> None:
    lines = [HEAD, STATE, *TRACE]
    lines.insert(min(where, len(lines)), data.decode("utf-8", "surrogateescape"))
    assert feed(HungTask(), lines)


@given(
    st.text(min_size=0, max_size=15).filter(lambda name: "\0" not in name), st.integers(1, 2**22), st.integers(1, 10**6)
)
def test_any_name_comes_back_whole(comm: str, pid: int, seconds: int) -> None:
    (finding,) = feed(HungTask(), [f"INFO: task {comm}:{pid} blocked for more than {seconds} seconds."])
    assert (finding.facts.get("comm", ""), finding.facts["pid"], finding.facts["seconds"]) == (comm, pid, seconds)
