"""Effects join their cause: companions, and what a policy inhibits."""

from __future__ import annotations

from datetime import timedelta

from chronicle import E5, Chronicle, ladder

from bandog.domain.model import IncidentState
from bandog.domain.policy import Match

FOLLOWER = ladder("notify", name="follower", xid=(45,), resolve="quiet")


class TestCompanions:
    def test_one_that_follows_within_5_s_joins_and_opens_nothing(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see()
        gpu.now = gpu.now.plus(timedelta(seconds=5))
        gpu.see(45, companion=True, services=("llama",))
        assert list(gpu.engine.incidents) == [1]
        assert gpu.words()[-1] == "joined"
        assert gpu.incident().services == ("qwen", "llama")
        assert gpu.asked() == ["restart of qwen"]

    def test_one_that_came_before_joins_when_its_fault_arrives(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see(45, companion=True)
        gpu.now = gpu.now.plus(timedelta(seconds=3))
        gpu.see(94)
        assert gpu.incident(1).state is IncidentState.INHIBITED
        assert gpu.incident(1).joined == 2
        assert gpu.dropped == ["1.1"]
        assert gpu.asked() == ["notify", "restart of qwen"]

    def test_alone_it_goes_through_its_own_policy(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see()
        gpu.wait(seconds=6)
        gpu.see(45, companion=True)
        assert gpu.incident(2).policy == "follower"

    def test_hours_after_it_joined_it_is_alone_again(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see(45, companion=True)
        gpu.see(94)
        gpu.end("restart", "proved")
        gpu.wait(hours=3)
        gpu.see(45, companion=True)
        assert gpu.incident(3).policy == "follower"

    def test_a_flood_of_them_does_not_keep_the_fault_young(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see()
        opened = gpu.now
        for _ in range(20):
            gpu.wait(seconds=1)
            gpu.see(45, companion=True)
        assert gpu.incident(1).last == opened
        assert gpu.incident(2).policy == "follower"

    def test_a_forged_line_explains_no_real_one(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see(facts={"glued": True})
        gpu.see(45, companion=True)
        assert gpu.incident(2).policy == "follower"

    def test_another_gpu_is_another_event(self) -> None:
        gpu = Chronicle(ladder("restart"), FOLLOWER)
        gpu.see()
        gpu.see(45, companion=True, subject="gpu:0000:17:00.0")
        assert gpu.incident(2).policy == "follower"


class TestInhibits:
    LOST = ladder("reboot", name="lost", xid=(79,), inhibits=("task.hung", "service.*"))
    HUNG = ladder("restart", name="hung", match=Match(kinds=("task.hung",)))

    def test_an_effect_opened_up_to_a_minute_before_joins_and_stops(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(kind="task.hung", subject="task:vllm")
        gpu.wait(seconds=60)
        gpu.see(79)
        assert gpu.incident(1).state is IncidentState.INHIBITED
        assert gpu.incident(1).joined == 2
        assert gpu.dropped == ["1.1"]
        told = [c.what for c in gpu.told() if c.incident.id == 1]
        assert told == ["opened", "inhibited"]

    def test_one_opened_earlier_goes_its_own_way(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(kind="task.hung", subject="task:vllm")
        gpu.wait(seconds=61)
        gpu.see(79)
        assert gpu.incident(1).state is IncidentState.OPEN

    def test_one_that_comes_meanwhile_is_recorded_but_not_told(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(79)
        gpu.wait(minutes=10)
        gpu.see(kind="task.hung", subject="task:vllm")
        assert gpu.incident(2).state is IncidentState.INHIBITED
        assert gpu.asked() == ["reboot"]
        assert [c.incident.id for c in gpu.told()] == [1]
        assert gpu.words()[-1] == "joined"

    def test_its_further_findings_stay_with_it_while_the_cause_is_open(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(79)
        for _ in range(3):
            gpu.wait(minutes=2)
            gpu.see(kind="task.hung", subject="task:vllm")
        assert list(gpu.engine.incidents) == [1, 2]
        assert gpu.incident(2).findings == 3
        gpu.end("reboot", "proved")
        gpu.wait(hours=24)
        assert gpu.incident(1).state is IncidentState.RESOLVED
        gpu.see(kind="task.hung", subject="task:vllm")
        assert gpu.incident(3).state is IncidentState.OPEN

    def test_what_runs_finishes_and_is_told_but_climbs_no_further(self) -> None:
        gpu = Chronicle(self.LOST, ladder("restart", "reboot", name="hung", match=Match(kinds=("task.hung",))))
        gpu.see(kind="task.hung", subject="task:vllm")
        gpu.report("1.1", "running")
        gpu.see(79)
        assert gpu.dropped == []
        gpu.report("1.1", "failed", "unkillable")
        assert gpu.asked() == ["restart of qwen", "reboot"]
        assert gpu.incident(1).state is IncidentState.INHIBITED
        assert gpu.told()[-1].incident.id == 1

    def test_they_must_share_a_gpu_or_a_service(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(kind="task.hung", subject="task:other", services=("llama",))
        gpu.see(79)
        assert gpu.incident(1).state is IncidentState.OPEN
        gpu.see(kind="task.hung", subject=E5, services=())
        assert gpu.incident(3).state is IncidentState.INHIBITED

    def test_a_service_learned_later_joins_them(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(kind="task.hung", subject="task:vllm", services=())
        gpu.see(79)
        gpu.wait(seconds=10)
        gpu.see(kind="task.hung", subject="task:vllm", services=("qwen",))
        assert gpu.incident(1).state is IncidentState.INHIBITED

    def test_a_forged_cause_inhibits_nothing(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(79, facts={"glued": True})
        gpu.see(kind="task.hung", subject="task:vllm")
        assert gpu.incident(2).state is IncidentState.OPEN

    def test_a_cause_whose_policy_has_gone_inhibits_no_more(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(79)
        gpu.reload(self.HUNG)
        gpu.see(kind="task.hung", subject="task:vllm")
        assert gpu.incident(2).state is IncidentState.OPEN

    def test_a_drill_inhibits_nothing_real(self) -> None:
        gpu = Chronicle(self.LOST, self.HUNG)
        gpu.see(79, drill=True)
        gpu.see(kind="task.hung", subject="task:vllm")
        assert gpu.incident(2).state is IncidentState.OPEN
