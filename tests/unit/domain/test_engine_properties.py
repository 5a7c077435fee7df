"""Whatever comes in, in whatever order: no exception, no double request, nothing done without ground."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from chronicle import ACTIONS, Chronicle, ladder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bandog.domain.changes import FindingSeen, RequestMade, StepReport
from bandog.domain.model import Severity, StepState
from bandog.domain.policy import Match, Rate, Step

GPUS = ["gpu:0000:e5:00.0", "gpu:0000:17:00.0"]
LATER = Step(do="restart", after=timedelta(minutes=10))
LIMITED = Step(do="relaunch", limit=Rate(count=2, per=timedelta(hours=6)), with_={"without": "$subject"})
COUNTED = Match(kinds=("nvidia.xid",), count=Rate(count=3, per=timedelta(minutes=10)))
POLICIES = [
    ladder("evidence", "restart", LIMITED, "reboot", quiet=timedelta(hours=1)),
    ladder("reboot", name="lost", xid=(79,), inhibits=("task.hung", "nvidia.xid"), quiet=timedelta(hours=2)),
    ladder("notify", name="follower", xid=(45,), resolve="quiet", quiet=timedelta(minutes=5)),
    ladder("notify", LATER, name="hung", match=Match(kinds=("task.hung",)), resolve="cleared"),
    ladder("restart", "teleport", name="counted", match=COUNTED, mode="observe"),
]
FINDINGS = st.fixed_dictionaries(
    {"xid": st.sampled_from([94, 79, 45, 13]), "subject": st.sampled_from([*GPUS, "task:vllm"])},
    optional={
        "kind": st.sampled_from(["nvidia.xid", "task.hung"]),
        "raised": st.booleans(),
        "live": st.booleans(),
        "companion": st.booleans(),
        "drill": st.booleans(),
        "record": st.none(),
        "severity": st.sampled_from(Severity),
        "services": st.lists(st.sampled_from(["qwen", "llama", "qwen"]), max_size=3).map(tuple),
        "facts": st.dictionaries(
            st.sampled_from(["glued", "count", "text", "pid"]),
            st.one_of(st.booleans(), st.integers(), st.text(max_size=3)),
        ),
    },
)
EVENTS = st.one_of(
    st.tuples(st.just("see"), FINDINGS),
    st.tuples(st.just("report"), st.tuples(st.integers(0, 9), st.sampled_from(StepState))),
    st.tuples(st.just("wild"), st.tuples(st.text(max_size=5), st.sampled_from(StepState))),
    st.tuples(st.just("wait"), st.sampled_from([1, 4, 30, 60, 301, 700, 4000, 90_000])),
    st.tuples(st.just("ack"), st.integers(0, 4)),
    st.tuples(st.just("reload"), st.sets(st.integers(0, len(POLICIES) - 1)).map(sorted)),
    st.tuples(st.just("shorten"), st.integers(0, len(POLICIES) - 1)),
    st.tuples(st.just("restart"), st.booleans()),
)


class Watched(Chronicle):
    """A chronicle that checks after every input what must always hold."""

    def apply(self, event: Any) -> Any:
        changes = super().apply(event)
        for change in changes:
            if isinstance(change, RequestMade):
                self._judge(change)
        open_ = Counter((r.incident, r.step, r.service) for r in self.open_requests())
        assert all(count == 1 for count in open_.values()), "two open requests for one step and service"
        for incident in self.engine.incidents.values():
            assert incident.acked_by is None or not incident.state.ended or incident.ended is not None
        return changes

    def _judge(self, change: RequestMade) -> None:
        request = change.request
        incident = self.engine.incidents[request.incident]
        assert incident.acked_by is None
        assert not incident.state.ended
        assert request.drill == incident.drill
        if request.disruptive:
            assert request.live, "a disruptive request without a finding that may act"
            assert request.found_at in self.grounds
        assert request.mode == ("observe" if request.policy == "counted" else "enforce")

    grounds: set[Any]


def play(world: Watched, event: str, value: Any) -> None:
    if event == "see":
        fields = dict(value)
        finding = world.finding(fields.pop("xid"), **fields)
        if finding.live and not finding.facts.get("glued"):
            world.grounds.add(finding.at)
        world.apply(FindingSeen(finding=finding))
    elif event == "report":
        number, state = value
        names = list(world.requests)
        if names:
            kept, was, _ = world.requests[names[-1 - number % len(names)]]
            if not was.ended or kept.id in world.dropped:
                world.report(kept.id, state.value, "why")
    elif event == "wild":
        world.apply(StepReport(request=value[0], state=value[1]))
    elif event == "wait":
        world.wait(seconds=value)
    elif event == "ack":
        world.ack(value)
    elif event == "reload":
        world.reload(*(POLICIES[index] for index in value))
    elif event == "shorten":
        policy = POLICIES[value]
        shorter = ladder(*policy.steps[1:], name=policy.name, match=policy.match, mode=policy.mode)
        world.reload(*(shorter if p is policy else p for p in POLICIES))
    elif event == "restart":
        world.restart(boot=f"boot-{len(world.changes)}" if value else None)


@settings(max_examples=250, deadline=None)
@given(st.lists(EVENTS, max_size=60))
@example(
    [  # "it waits", said of a request that has just been dropped
        ("see", {"xid": 94, "subject": GPUS[0]}),
        ("see", {"xid": 94, "subject": GPUS[0], "kind": "task.hung", "live": False}),
        ("reload", []),
        ("report", (0, StepState.WAITING)),
        ("shorten", 0),
        ("see", {"xid": 94, "subject": GPUS[0], "kind": "task.hung"}),
    ]
)
@example(
    [  # a request that began while a reload took its step away; the step comes back meanwhile
        ("see", {"xid": 79, "subject": GPUS[0]}),
        ("shorten", 1),
        ("report", (0, StepState.RUNNING)),
        ("wait", 30),
        ("reload", [0, 1]),
        ("see", {"xid": 79, "subject": GPUS[0]}),
    ]
)
def test_any_sequence_of_inputs_is_taken_and_the_rules_hold(events: list[tuple[str, Any]]) -> None:
    world = Watched(*POLICIES, actions=ACTIONS)
    world.grounds = set()
    for event, value in events:
        play(world, event, value)
    world.wait(seconds=1)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        FINDINGS.flatmap(
            lambda fields: st.sampled_from([{"live": False}, {"facts": {"glued": True}}]).map(
                lambda unfit: {**fields, **unfit}
            )
        ),
        max_size=30,
    )
)
def test_findings_that_may_not_act_never_lead_to_a_disruptive_request(findings: list[dict[str, Any]]) -> None:
    world = Chronicle(*POLICIES)
    for fields in findings:
        world.see(fields["xid"], **{name: value for name, value in fields.items() if name != "xid"})
        for request in world.open_requests():
            assert not request.disruptive
            world.report(request.id, "proved")
        world.wait(seconds=61)


@settings(max_examples=50, deadline=None)
@given(st.lists(FINDINGS, min_size=1, max_size=40), st.integers(0, 40))
def test_a_restart_at_any_point_changes_nothing_that_is_done(findings: list[dict[str, Any]], at: int) -> None:
    """Two agents see the same; one is killed and started again in between: the same requests."""
    steady, killed = Chronicle(*POLICIES), Chronicle(*POLICIES)
    for number, fields in enumerate(findings):
        for world in (steady, killed):
            world.see(fields["xid"], **{name: value for name, value in fields.items() if name != "xid"})
            for request in world.open_requests():
                world.report(request.id, "proved" if number % 2 else "failed")
            if world is killed and number == at % len(findings):
                world.restart()
            world.wait(seconds=90)
    assert killed.asked() == steady.asked()
    assert {i: x.state for i, x in killed.saved.items()} == {i: x.state for i, x in steady.saved.items()}
