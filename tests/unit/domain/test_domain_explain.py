"""Why a step would or would not act, for one finding by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bandog.domain.changes import ActionTraits
from bandog.domain.explain import Hurt, Setting, StepView, explain
from bandog.domain.model import Finding, Instant
from bandog.domain.policy import Match, Policy, Rate, Step
from samples import finding

AT = Instant(boot_id="b", boottime=timedelta(hours=1), utc=datetime(2026, 11, 30, tzinfo=UTC))
ACTIONS = {
    "evidence": ActionTraits(disruptive=False, proves=False),
    "notify": ActionTraits(disruptive=False, proves=False),
    "restart": ActionTraits(per_service=True),
    "reboot": ActionTraits(),
}
LADDER = (
    Step(do="evidence"),
    Step(do="restart", limit=Rate(count=2, per=timedelta(days=1))),
    Step(do="reboot", after=timedelta(minutes=10), with_={"when": "window"}),
    Step(do="notify", with_={"to": ["oncall"]}),
)
ENFORCE = Setting(actions=ACTIONS, mode="enforce", targets={"oncall"})
QWEN = Hurt(name="qwen")


def policy(*steps: Step, **fields: Any) -> Policy:
    """A policy that takes every Xid."""
    count = fields.pop("count", None)
    return Policy(name="p", match=Match(kinds=("nvidia.xid",), count=count), steps=steps or LADDER, **fields)


def would(views: tuple[StepView, ...]) -> list[tuple[str, bool]]:
    """Which steps would act."""
    return [(view.do, view.would) for view in views]


def test_enforce_acts_on_each_rung_and_says_when() -> None:
    """Later rungs wait for the proof of the one before, for their time, and within their limit."""
    evidence, restart, reboot, notify = explain(finding(), policy(), ENFORCE, [QWEN])
    assert all(view.would for view in (evidence, restart, reboot, notify))
    assert evidence.why == "disrupts nothing, so it runs in every mode"
    assert restart.why == "at most 2 per 1d; acts on qwen"
    assert "if restart does not help, or the fault is back within 30m" in reboot.why
    assert "not before 10m have passed, and only while the fault is still there" in reboot.why
    assert "in the next window" in reboot.why
    assert notify.why.startswith("if reboot does not help") and notify.why.endswith("tells oncall")


def test_observe_acts_on_nothing_that_disrupts() -> None:
    """Evidence and messages go on; the rest is only told."""
    views = explain(finding(), policy(), Setting(actions=ACTIONS, targets={"oncall"}), [QWEN])
    assert would(views) == [("evidence", True), ("restart", False), ("reboot", False), ("notify", True)]
    assert views[1].why == "mode is observe: it would only be told as something that bandog would have done"


@pytest.mark.parametrize(
    ("setting", "rule", "hurt", "why"),
    [
        (Setting(actions=ACTIONS, mode=("reboot",)), policy(), [QWEN], "mode is [reboot]"),
        (ENFORCE, policy(mode="observe"), [QWEN], "the policy's own mode is observe"),
        (ENFORCE, policy(), [Hurt(name="qwen", mode="observe")], "the mode of service qwen is observe"),
        (ENFORCE, policy(), [], "no service of ours uses it"),
        (Setting(actions={}, mode="enforce"), policy(), [QWEN], "not loaded on this host"),
    ],
)
def test_restart_would_not_act(setting: Setting, rule: Policy, hurt: list[Hurt], why: str) -> None:
    """The strictest mode wins; a step needs an action and something to act on."""
    restart = explain(finding(), rule, setting, hurt)[1]
    assert not restart.would
    assert why in restart.why


def test_one_willing_service_is_enough() -> None:
    """A step makes one request a service: one that may act makes the step act."""
    assert explain(finding(), policy(), ENFORCE, [Hurt(name="a", mode="observe"), QWEN])[1].would


def test_pid_may_tell_more_than_a_log() -> None:
    """Without a service on that GPU the process might still belong to one."""
    restart = explain(finding(facts={"xid": 94, "pid": 7}), policy(), ENFORCE, [])[1]
    assert "the living daemon would ask whose process" in restart.why


def test_nobody_to_tell() -> None:
    """A message to a name without an address is none."""
    notify = explain(finding(), policy(), Setting(actions=ACTIONS, mode="enforce"), [QWEN])[3]
    assert (notify.would, notify.why) == (False, "notify: names nobody called oncall yet")


@pytest.mark.parametrize(
    ("one", "rule", "why"),
    [
        (finding(facts={"xid": 94, "glued": True}), policy(), "never a step"),
        (finding(raised=False), policy(), "has cleared"),
        (finding(), policy(count=Rate(count=3, per=timedelta(minutes=10))), "needs 3 within 10m; this is 1"),
    ],
)
def test_no_step_at_all(one: Finding, rule: Policy, why: str) -> None:
    """Forged text, a fault that has gone, and one of three: no step begins."""
    views = explain(one, rule, ENFORCE, [QWEN])
    assert len(views) == 4
    assert not any(view.would for view in views)
    assert all(why in view.why for view in views)


def test_count_of_the_finding_counts() -> None:
    """A finding weighs its fact `count`."""
    one = finding(facts={"xid": 94, "count": 5})
    assert explain(one, policy(count=Rate(count=3, per=timedelta(minutes=10))), ENFORCE, [QWEN])[0].would


def test_companion_says_that_it_joins() -> None:
    """A follower acts only where there is nothing to follow."""
    assert "which it would join" in explain(finding(companion=True), policy(), ENFORCE, [QWEN])[0].why


def test_without_a_policy_there_are_no_steps() -> None:
    """No policy, no ladder."""
    assert explain(finding(), None, ENFORCE, [QWEN]) == ()
