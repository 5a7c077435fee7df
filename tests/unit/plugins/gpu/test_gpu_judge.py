"""What looks mean: each finding is raised by proof, cleared by proof, and kept where the driver does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandog import Fact, Finding, GpuLook, KnownGpu, Look, Severity, Unknown, subjects
from bandog.testing import FakeClock
from bandog_plugins.gpu.judge import EMITS, LOOKS, OF_A_CARD, Judge

A, B, C = "0000:17:00.0", "0000:65:00.0", "0000:e5:00.0"
START = FakeClock().now()
ROUND = timedelta(seconds=10)
CLOCKS = "nvmlDeviceGetCurrentClocksEventReasons"


def card(address: str = A, **changes: Any) -> GpuLook:
    """A GPU that is well and at work."""
    well: dict[str, Any] = {
        "uuid": f"GPU-{address}",
        "serial": f"S{address[5:7]}",
        "name": "NVIDIA H100",
        "index": 0,
        "util": 97,
        "power": 512.4,
        "temperature": 66,
        "sm_clock": 1700,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "remapped": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "links": (True,) * 4,
        "recovery": "none",
        "persistence": True,
    }
    return GpuLook(address=address, **(well | changes))


def known(*addresses: str, **changes: Any) -> tuple[KnownGpu, ...]:
    return tuple(
        KnownGpu(
            uuid=f"GPU-{one}",
            slot=one,
            serial=f"S{one[5:7]}",
            name="NVIDIA H100",
            first_seen=START,
            last_seen=START,
            **changes,
        )
        for one in addresses
    )


class Course:
    """A judge over looks that come every 10 s."""

    def __init__(self, *expected: str, every: timedelta = ROUND) -> None:
        self.judge = Judge()
        self.cards = known(*(expected or (A,)))
        self.every = every
        self.at = START

    def look(self, *gpus: GpuLook, **changes: Any) -> list[Finding | Unknown]:
        self.at = self.at.plus(self.every)
        return self.judge.take(Look(at=self.at, gpus=gpus, **changes), self.cards)

    def looks(self, count: int, *gpus: GpuLook) -> list[Finding | Unknown]:
        return [self.look(*gpus) for _ in range(count)][-1]


def found(
    answer: Sequence[Finding | Unknown], kind: str, subject: str = subjects.gpu(A)
) -> dict[str, Fact] | str | None:
    """The facts of a finding, "unknown", or None where the probe says that it is not raised."""
    for one in answer:
        if one.kind == kind and one.subject in (subject, "*"):
            return "unknown" if isinstance(one, Unknown) else dict(one.facts)
    return None


PAPERS = {"uuid": f"GPU-{A}", "serial": "S17", "name": "NVIDIA H100"}


def test_gpus_that_are_well_raise_nothing_and_leave_nothing_open() -> None:
    course = Course(A, B)
    assert [course.look(card(A), card(B)) for _ in range(5)] == [[]] * 5


@pytest.mark.parametrize(
    ("kind", "changes", "facts"),
    [
        ("gpu.lost", {"lost": True, "errors": {"x": "GPU is lost"}}, {"reason": "gpu-is-lost", "text": "GPU is lost"}),
        ("gpu.recovery-needed", {"recovery": "reset"}, {"recovery": "reset"}),
        ("gpu.row-remap-pending", {"remap_pending": True, "remapped": 2}, {"remapped": 2}),
        ("gpu.row-remap-failed", {"remap_failed": True, "remapped": 8}, {"remapped": 8, "pending": False}),
        ("gpu.ecc-uncorrected", {"ecc_uncorrected": 2}, {"count": 2, "total": 2, "corrected": 3}),
    ],
)
def test_a_state_that_the_driver_states_is_raised_and_cleared_by_one_look(
    kind: str, changes: dict[str, Any], facts: dict[str, Fact]
) -> None:
    course = Course()
    assert found(course.look(card()), kind) is None
    assert found(course.look(card(**changes)), kind) == PAPERS | facts
    assert found(course.look(card()), kind) is None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpu.lost", {"uuid": "", "errors": {"nvmlDeviceGetUUID": "Unknown Error"}}),
        ("gpu.recovery-needed", {"recovery": None}),
        ("gpu.row-remap-pending", {"remap_pending": None}),
        ("gpu.row-remap-failed", {"remap_failed": None}),
        ("gpu.ecc-uncorrected", {"ecc_uncorrected": None}),
        ("gpu.throttled", {"errors": {CLOCKS: "Unknown Error"}}),
        ("gpu.link-degraded", {"pcie_width": None}),
        ("gpu.link-degraded", {"links": (), "errors": {"nvmlDeviceGetNvLinkState": "Unknown Error"}}),
    ],
)
def test_what_a_failed_call_would_have_told_is_unknown(kind: str, changes: dict[str, Any]) -> None:
    assert found(Course().look(card(**changes)), kind) == "unknown"


def test_of_a_lost_gpu_nothing_else_is_known() -> None:
    answer = Course().look(card(lost=True, uuid="", name="", serial="", recovery=None))
    assert found(answer, "gpu.lost") == PAPERS | {"reason": "gpu-is-lost"}
    assert {one.kind for one in answer if isinstance(one, Unknown)} == {*OF_A_CARD} - {"gpu.lost", "gpu.missing"}


def test_a_card_is_missing_once_three_looks_did_not_see_it() -> None:
    course = Course(A, B)
    course.look(card(A), card(B))
    gone = [course.look(card(A)) for _ in range(LOOKS)]
    subject = subjects.gpu(B)
    assert [found(one, "gpu.missing", subject) for one in gone[:-1]] == ["unknown"] * 2
    assert found(gone[-1], "gpu.missing", subject) == {
        "uuid": f"GPU-{B}", "serial": "S65", "name": "NVIDIA H100", "expected": 2, "seen": 1
    }  # fmt: skip
    assert found(gone[-1], "gpu.lost", subject) == "unknown"
    assert course.look(card(A), card(B)) == []


def test_a_card_that_does_not_tell_its_uuid_is_there() -> None:
    course = Course(A, B)
    assert found(course.looks(5, card(A), card(B, uuid="")), "gpu.missing", subjects.gpu(B)) is None


def test_a_card_that_a_person_has_taken_out_is_not_missing() -> None:
    course = Course(A)
    course.cards += known(B, expected=False)
    assert course.looks(5, card(A)) == []


def test_shifted_indices_make_no_card_another() -> None:
    course = Course(A, B, C)
    course.look(card(A, index=0), card(B, index=1), card(C, index=2))
    answer = course.looks(LOOKS, card(A, index=0), card(C, index=1, recovery="reset"))
    assert [(one.kind, one.subject) for one in answer if isinstance(one, Finding)] == [
        ("gpu.recovery-needed", subjects.gpu(C)),
        ("gpu.missing", subjects.gpu(B)),
    ]


def test_each_further_uncorrected_error_is_news_and_weighs_what_was_added() -> None:
    course = Course()
    answers = [course.look(card(ecc_uncorrected=total)) for total in (4, 4, 6, 1)]
    findings = [one for answer in answers for one in answer if isinstance(one, Finding)]
    assert [one.aspect for one in findings] == ["4", "4", "6", "1"]
    # The last: the driver was loaded again, so the one is a new one.
    assert [one.facts.get("count") for one in findings] == [4, None, 2, 1]


def test_clocks_are_throttled_after_two_minutes_and_free_after_three_looks() -> None:
    course = Course()
    hot = card(throttle=("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown"), temperature=91)
    assert [found(course.look(hot), "gpu.throttled") for _ in range(12)] == ["unknown"] * 12
    raised = found(course.look(hot), "gpu.throttled")
    assert raised == PAPERS | {
        "reasons": ("hw_slowdown", "hw_thermal_slowdown"), "seconds": 120, "temperature": 91, "power": 512,
        "sm_clock": 1700,
    }  # fmt: skip
    assert [found(course.look(card()), "gpu.throttled") for _ in range(3)] == ["unknown", "unknown", None]


def test_throttling_that_comes_and_goes_is_no_fault() -> None:
    course = Course()
    for _ in range(30):
        assert found(course.look(card(throttle=("hw_slowdown",))), "gpu.throttled") == "unknown"
        assert found(course.look(card()), "gpu.throttled") is None


@pytest.mark.parametrize("reasons", [("sw_power_cap",), ("gpu_idle", "hw_slowdown"), ("applications_clocks_setting",)])
def test_a_power_cap_an_idle_gpu_and_set_clocks_are_no_throttling(reasons: tuple[str, ...]) -> None:
    assert found(Course().looks(30, card(throttle=reasons)), "gpu.throttled") is None


def test_a_narrow_pcie_link_is_degraded_after_three_looks() -> None:
    course = Course()
    narrow = card(pcie_width=8)
    assert [found(course.look(narrow), "gpu.link-degraded") for _ in range(2)] == ["unknown"] * 2
    raised = found(course.look(narrow), "gpu.link-degraded")
    assert isinstance(raised, dict)
    assert (raised["what"], raised["width"], raised["width_max"]) == (("pcie-width",), 8, 16)
    assert found(course.look(card()), "gpu.link-degraded") is None


def test_a_slow_pcie_link_counts_under_load_only() -> None:
    course = Course()
    idle, slow = card(pcie_generation=1, util=0), card(pcie_generation=3)
    assert found(course.looks(10, idle), "gpu.link-degraded") == "unknown"
    raised = found(course.looks(LOOKS, slow), "gpu.link-degraded")
    assert isinstance(raised, dict)
    assert raised["what"] == ("pcie-generation",)
    assert found(course.looks(10, idle), "gpu.link-degraded") == "unknown"
    assert found(course.look(card()), "gpu.link-degraded") is None


def test_a_width_that_recovers_while_idle_has_recovered() -> None:
    course = Course()
    course.looks(LOOKS, card(pcie_width=8, pcie_generation=1, util=0))
    assert found(course.look(card(pcie_generation=1, util=0)), "gpu.link-degraded") is None


def test_an_nvlink_that_was_up_and_is_down_is_degraded() -> None:
    course = Course()
    course.look(card())
    raised = found(course.looks(LOOKS, card(links=(True, False, True, True))), "gpu.link-degraded")
    assert isinstance(raised, dict)
    assert (raised["what"], raised["links_up"], raised["links_down"]) == (("nvlink",), 3, (1,))
    assert found(course.look(card()), "gpu.link-degraded") is None


def test_an_nvlink_that_never_came_up_shows_beside_cards_of_its_kind() -> None:
    course = Course(A, B)
    less = card(B, links=(True, True, False, True))
    assert isinstance(found(course.looks(LOOKS, card(A), less), "gpu.link-degraded", subjects.gpu(B)), dict)


def test_a_card_without_a_bridge_is_not_degraded_beside_cards_with_one() -> None:
    course = Course(A, B)
    assert course.looks(5, card(A), card(B, links=(False,) * 4)) == []


def test_a_driver_that_hangs_leaves_everything_else_unknown() -> None:
    course = Course()
    course.look(card(recovery="reset"))
    answer = course.look(hung=True, error="no answer", extra={"seconds": 12, "stuck": True})
    text = "a program that asked it cannot even be killed"
    assert found(answer, "gpu.driver-hung", subjects.HOST) == {"seconds": 12, "stuck": True, "text": text}
    assert {one.kind for one in answer if isinstance(one, Unknown)} == {*OF_A_CARD, "gpu.driver-mismatch"}
    assert found(course.look(card()), "gpu.driver-hung", subjects.HOST) is None


@pytest.mark.parametrize(("error", "severity"), [("", Severity.WARNING), ("version mismatch", Severity.ERROR)])
def test_a_mismatch_is_worse_once_the_driver_refuses(error: str, severity: Severity) -> None:
    course = Course()
    answer = course.look(
        *([] if error else [card()]), mismatch=True, error=error, driver="550.54.15", library="550.90.07"
    )
    (finding,) = [one for one in answer if isinstance(one, Finding)]
    assert (finding.kind, finding.severity) == ("gpu.driver-mismatch", severity)
    assert finding.facts == {"driver": "550.54.15", "library": "550.90.07", "answers": not error}
    assert course.look(card()) == []


def test_a_round_that_failed_neither_raises_nor_clears() -> None:
    answer = Course().look(error="Driver Not Loaded")
    assert all(isinstance(one, Unknown) for one in answer)
    assert {one.kind for one in answer} == set(EMITS)


def test_a_reading_that_fails_in_between_breaks_no_streak() -> None:
    course = Course()
    narrow = card(pcie_width=8)
    course.looks(2, narrow)
    course.look(card(pcie_width=None))
    assert isinstance(found(course.look(narrow), "gpu.link-degraded"), dict)


gpus = st.builds(
    card,
    address=st.sampled_from([A, B, C]),
    uuid=st.sampled_from(["", f"GPU-{A}", f"GPU-{B}", "GPU-x"]),
    lost=st.booleans(),
    util=st.none() | st.integers(0, 100),
    power=st.none() | st.floats(0, 1e6),
    ecc_uncorrected=st.none() | st.integers(-1, 1 << 64),
    remap_pending=st.none() | st.booleans(),
    remap_failed=st.none() | st.booleans(),
    pcie_width=st.none() | st.integers(0, 16),
    pcie_width_max=st.none() | st.integers(0, 16),
    pcie_generation=st.none() | st.integers(0, 7),
    links=st.sampled_from([(), (True,) * 4, (True, False, True, True), (False,) * 4]),
    recovery=st.none() | st.sampled_from(["none", "reset", "action-7"]),
    throttle=st.lists(st.sampled_from(["gpu_idle", "hw_slowdown", "sw_power_cap", "?"]), max_size=3).map(tuple),
    errors=st.dictionaries(st.sampled_from([CLOCKS, "nvmlDeviceGetNvLinkState"]), st.text(max_size=5)),
)
looks = st.builds(
    Look,
    at=st.just(START),
    gpus=st.lists(gpus, max_size=3, unique_by=lambda one: one.address).map(tuple),
    error=st.sampled_from(["", "", "", "no"]),
    mismatch=st.booleans(),
)


@settings(max_examples=80)
@given(st.lists(looks, max_size=6))
def test_whatever_the_driver_says_the_judge_answers_soundly(taken: list[Look]) -> None:
    judge, at = Judge(), START
    for look in taken:
        at = at.plus(ROUND)
        for one in judge.take(replace(look, at=at), known(A, B)):
            assert one.kind in EMITS
            if isinstance(one, Finding):
                assert not look.error or one.kind.startswith("gpu.driver-")
                assert set(one.facts) <= set(EMITS[one.kind])
                for name, value in one.facts.items():
                    assert type(value) is EMITS[one.kind][name]


@settings(max_examples=80)
@given(st.lists(looks, max_size=6), st.integers(1, 5))
def test_after_looks_at_gpus_that_are_well_nothing_is_raised(taken: list[Look], more: int) -> None:
    judge, at = Judge(), START
    for look in taken:
        at = at.plus(ROUND)
        judge.take(replace(look, at=at), known(A))
    answer: list[Finding | Unknown] = []
    for _ in range(LOOKS + more):
        at = at.plus(ROUND)
        answer = judge.take(Look(at=at, gpus=(card(A),)), known(A))
    assert [one for one in answer if isinstance(one, Finding)] == []
