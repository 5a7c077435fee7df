"""The scan for tasks that hang, on a /proc that the test writes and on real tasks in D state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from stuck_task import StuckTask

from bandog import Finding, Severity, Unknown, processes
from bandog.host.paths import Paths
from bandog.services.registry import Service
from bandog.testing import FakeHost, FakeServices, FakeSite, feed
from bandog_plugins.detectors._hung_scan import HungTaskScan, ScanOptions
from bandog_plugins.detectors._hung_watch import ROUNDS, SHARE, Watch
from bandog_plugins.detectors.hung_task import HungTask

UNIT = "vllm-qwen.service"
GROUP = f"/system.slice/{UNIT}"
UVM = (
    "[<0>] __switch_to+0x1/0x2\n[<0>] schedule+0x23/0xa0\n"
    "[<0>] uvm_va_space_destroy+0x4c/0x5e0 [nvidia_uvm]\n[<0>] do_exit+0x1/0x2\n"
)


@dataclass
class Scan:
    """A scan over a fake host with one service; `rounds` polls as the daemon does, every 10 s."""

    host: FakeHost
    site: FakeSite
    probe: HungTaskScan

    def rounds(self, count: int) -> list[Finding | Unknown]:
        answer: list[Finding | Unknown] = []
        for _ in range(count):
            answer = list(self.probe.poll(self.site))
            self.host.clock.advance(timedelta(seconds=10))
        return answer


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    host = FakeHost(tmp_path)
    host.cgroup(GROUP, 700)
    host.task(700, "VLLM::EngineCor", "S", cgroup=GROUP)
    site = FakeSite(host, services=FakeServices(Service(name="qwen", unit=UNIT)))
    return Scan(host, site, HungTaskScan())


def raised(answer: list[Finding | Unknown]) -> list[Finding]:
    return [one for one in answer if isinstance(one, Finding) and one.raised]


def test_a_task_of_a_managed_unit_that_stands_still_for_30_s_hangs(scan: Scan) -> None:
    scan.host.task(700, "VLLM::Worker_TP", "D", tid=703, stack=UVM, wchan="uvm_va_space_destroy")
    assert raised(scan.rounds(3)) == []
    (finding,) = scan.rounds(1)
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.subject, finding.severity) == ("task.hung", "task:VLLM::Worker_TP", Severity.ERROR)
    expected = {"pid": 703, "tgid": 700, "comm": "VLLM::Worker_TP", "class": "driver", "unit": UNIT, "by": "scan"}
    expected |= {"where": "uvm_va_space_destroy", "state": "D"}
    assert {name: finding.facts.get(name) for name in expected} == expected
    assert finding.facts["seconds"] == 30
    assert finding.live
    assert {name for name in finding.facts if name not in HungTaskScan.emits["task.hung"]} == set()


def test_until_then_it_is_unknown_so_that_nothing_clears(scan: Scan) -> None:
    scan.host.task(700, "VLLM::EngineCor", "D")
    assert [type(one) for one in scan.rounds(1)] == [Unknown]
    (unknown,) = scan.rounds(1)
    assert (unknown.kind, unknown.subject) == ("task.hung", "task:VLLM::EngineCor")


@pytest.mark.parametrize("progress", [{"switches": 101}, {"cpu_ticks": 11}, {"start": 2000}])
def test_a_task_that_moved_between_two_looks_begins_anew(scan: Scan, progress: dict[str, int]) -> None:
    scan.host.task(700, "VLLM::EngineCor", "D")
    scan.rounds(3)
    scan.host.task(700, "VLLM::EngineCor", "D", **progress)  # type: ignore[arg-type]  # one int each
    assert raised(scan.rounds(3)) == []
    assert len(raised(scan.rounds(1))) == 1


def test_one_look_is_never_enough_however_short_the_patience(scan: Scan) -> None:
    scan.probe = HungTaskScan(ScanOptions(managed=timedelta(seconds=1)))
    scan.host.task(700, "VLLM::EngineCor", "D")
    assert raised(scan.rounds(2)) == []
    assert len(raised(scan.rounds(1))) == 1


def test_what_the_scan_reported_is_left_out_once_it_moves(scan: Scan) -> None:
    scan.host.task(700, "VLLM::EngineCor", "D")
    assert len(raised(scan.rounds(5))) == 1
    scan.host.task(700, "VLLM::EngineCor", "S")
    assert scan.rounds(1) == []


def test_a_shorter_wait_that_ends_is_cleared_in_so_many_words(scan: Scan) -> None:
    """khungtaskd may have reported it, and the kernel never says that a task moves again."""
    scan.host.task(700, "VLLM::EngineCor", "D")
    scan.rounds(2)
    scan.host.task(700, "VLLM::EngineCor", "S")
    (cleared,) = scan.rounds(1)
    assert isinstance(cleared, Finding)
    assert (cleared.raised, cleared.subject, cleared.aspect) == (False, "task:VLLM::EngineCor", "700")
    assert scan.rounds(1) == []


def test_a_wait_elsewhere_that_ends_after_one_look_is_cleared_too(scan: Scan) -> None:
    """The look at the whole host comes as often as khungtaskd's, so it may have been reported."""
    scan.host.task(900, "rsync", "D")
    scan.rounds(1)
    scan.host.task(900, "rsync", "S")
    assert [(one.subject, one.raised) for one in scan.rounds(1) if isinstance(one, Finding)] == [("task:rsync", False)]


def test_a_moment_of_d_in_a_service_is_not_worth_a_word(scan: Scan) -> None:
    scan.host.task(700, "VLLM::EngineCor", "D")
    scan.rounds(1)
    scan.host.task(700, "VLLM::EngineCor", "S")
    assert scan.rounds(1) == []


def test_of_two_tasks_with_one_name_only_the_one_that_moves_clears(scan: Scan) -> None:
    scan.host.task(700, "pt_data_worker", "D", tid=701)
    scan.host.task(700, "pt_data_worker", "D", tid=702)
    scan.rounds(3)
    scan.host.task(700, "pt_data_worker", "S", tid=701)
    (finding, cleared) = scan.rounds(1)
    assert isinstance(finding, Finding)
    assert isinstance(cleared, Finding)
    assert (finding.raised, finding.aspect) == (True, "702")
    assert (cleared.raised, cleared.aspect) == (False, "701")


def test_the_scan_and_the_kernels_report_speak_of_one_thing(scan: Scan) -> None:
    scan.host.task(700, "VLLM::EngineCor", "D")
    (scanned,) = raised(scan.rounds(4))
    (reported,) = feed(HungTask(), ["INFO: task VLLM::EngineCor:700 blocked for more than 122 seconds."])
    assert scanned.key() == reported.key()
    assert scanned.burst == reported.burst


def test_elsewhere_on_the_host_it_takes_two_minutes(scan: Scan) -> None:
    scan.host.task(900, "rsync", "D", wchan="rpc_wait_bit_killable")
    assert raised(scan.rounds(12)) == []
    (finding,) = raised(scan.rounds(1))
    assert (finding.subject, finding.severity) == ("task:rsync", Severity.WARNING)
    assert (finding.facts["class"], finding.facts["where"]) == ("remote-storage", "rpc_wait_bit_killable")
    assert "unit" not in finding.facts


def test_a_wait_that_begins_between_two_looks_at_the_host_is_found_by_the_next(scan: Scan) -> None:
    scan.rounds(1)
    scan.host.task(900, "rsync", "D")
    assert scan.rounds(12) == []
    assert [type(one) for one in scan.rounds(1)] == [Unknown]


@pytest.mark.parametrize(
    ("comm", "stack", "hangs"),
    [
        ("nv_queue", "[<0>] down+0x1/0x2\n[<0>] _main_loop+0x1/0x2 [nvidia]\n[<0>] kthread+0x1/0x2\n", False),
        ("idle_thing", "[<0>] kthread+0x1/0x2\n", False),
        ("jbd2/sda1-8", "[<0>] jbd2_journal_commit_transaction+0x1/0x2 [jbd2]\n[<0>] kthread+0x1/0x2\n", True),
        ("kworker/1:1", "[<0>] nv_x+0x1/0x2 [nvidia]\n[<0>] process_one_work+0x1/0x2\n", True),
    ],
)
def test_a_kernel_thread_counts_only_when_it_is_at_work(scan: Scan, comm: str, stack: str, hangs: bool) -> None:
    scan.host.task(90, comm, "D", ppid=2, stack=stack)
    assert bool(raised(scan.rounds(14))) is hangs


def test_an_idle_kernel_thread_is_never_looked_at(scan: Scan) -> None:
    scan.host.task(90, "kworker/1:1", "I", ppid=2)
    assert scan.rounds(14) == []


def test_a_gpu_holder_known_before_it_hangs_counts_like_a_service(scan: Scan) -> None:
    (scan.host.paths.dev / "nvidia0").touch()
    scan.host.task(800, "python3", "S")
    fds = scan.host.paths.proc / "800/fd"
    fds.mkdir()
    (fds / "3").symlink_to(scan.host.paths.dev / "nvidia0")
    scan.rounds(1)
    scan.host.task(800, "python3", "D")
    (finding,) = raised(scan.rounds(4))
    assert (finding.facts["pid"], finding.facts["holds_gpu"]) == (800, True)


def test_the_descriptors_of_a_task_in_d_are_not_looked_at(scan: Scan) -> None:
    (scan.host.paths.dev / "nvidia0").touch()
    scan.host.task(800, "python3", "D")
    fds = scan.host.paths.proc / "800/fd"
    fds.mkdir()
    (fds / "3").symlink_to(scan.host.paths.dev / "nvidia0")
    assert raised(scan.rounds(5)) == []


def killed(scan: Scan, *, system_ticks: int, pending: str = "0000000000000100") -> None:
    """Write thread 700 as running, with SIGKILL pending and this much system time."""
    scan.host.task(700, "VLLM::EngineCor", "R", stack=UVM)
    for place in ("700", "700/task/700"):
        status = scan.host.paths.proc / place / "status"
        status.write_text(f"{status.read_text()}SigPnd:\t{pending}\nShdPnd:\t0000000000000000\n")
        stat = scan.host.paths.proc / place / "stat"
        words = stat.read_text().split()
        words[-37] = str(system_ticks)
        stat.write_text(" ".join(words))


def test_a_killed_task_that_spins_in_the_driver_hangs_although_it_runs(scan: Scan) -> None:
    answer: list[Finding | Unknown] = []
    for ticks in range(5):
        killed(scan, system_ticks=1000 * ticks)
        answer = scan.rounds(1)
    (finding,) = raised(answer)
    assert (finding.facts["state"], finding.facts["class"], finding.facts["killed"]) == ("R", "driver", True)


def test_a_busy_task_that_nobody_killed_does_not_hang(scan: Scan) -> None:
    for ticks in range(6):
        killed(scan, system_ticks=1000 * ticks, pending="0000000000000000")
        assert scan.rounds(1) == []


def test_many_stuck_threads_of_a_process_are_one_finding_for_each_name(scan: Scan) -> None:
    for tid in range(701, 711):
        scan.host.task(700, "pt_data_worker", "D", tid=tid)
    (finding,) = raised(scan.rounds(4))
    assert (finding.facts["pid"], finding.facts["threads"]) == (701, 10)


def test_a_huge_process_is_looked_at_in_turns_but_its_leader_always(scan: Scan) -> None:
    proc = scan.host.paths.proc / "700/task"
    for tid in range(701, 701 + SHARE + 500):
        (proc / str(tid)).mkdir()
    scan.host.task(700, "last", "D", tid=700 + SHARE + 500)
    assert scan.rounds(1) != []  # the look at the whole host sees everyone
    scan.host.task(700, "last", "S", tid=700 + SHARE + 500)
    scan.rounds(2)
    scan.host.task(700, "last", "D", tid=700 + SHARE + 500)
    scan.host.task(700, "leader", "D")
    subjects = [{one.subject for one in scan.rounds(1)} for _ in range(3)]
    assert subjects == [set(), {"task:leader"}, {"task:leader", "task:last"}]


@pytest.mark.parametrize(("threads", "again"), [(5, set()), (SHARE * ROUNDS + 5, {701})])
def test_later_looks_at_the_host_leave_out_those_whose_turn_comes_anyway(
    scan: Scan, threads: int, again: set[int]
) -> None:
    for tid in range(701, 701 + threads):
        (scan.host.paths.proc / f"700/task/{tid}").mkdir()
    scan.host.task(700, "worker", "D", tid=701)
    scan.host.task(800, "nfsd", "D")
    watch = Watch()
    assert 700 not in {task.pid for task in watch.look(scan.site, scan.site.clock.now())}
    assert {task.pid for task in watch.look_everywhere(scan.site, first=True)} == {701, 800}
    assert {task.pid for task in watch.look_everywhere(scan.site, first=False)} == {800} | again


def test_exhausted_reports_make_the_log_blind_until_somebody_allows_more(scan: Scan) -> None:
    scan.host.write("/proc/sys/kernel/hung_task_warnings", "0\n")
    (blind,) = scan.rounds(1)
    assert isinstance(blind, Finding)
    assert (blind.kind, blind.subject) == ("agent.log-blind", "agent")
    scan.host.write("/proc/sys/kernel/hung_task_warnings", "10\n")
    assert scan.rounds(13) == []


def test_an_unreadable_proc_is_unknown_and_never_no_fault(scan: Scan, tmp_path: Path) -> None:
    (scan.host.paths.proc).rename(tmp_path / "away")
    (unknown,) = scan.rounds(1)
    assert (unknown.kind, unknown.subject) == ("task.hung", "*")
    assert scan.probe.unsupported(scan.host) is not None


def test_a_process_that_vanishes_in_the_middle_is_left_out(scan: Scan) -> None:
    scan.host.cgroup(GROUP, 700, 701)
    assert scan.rounds(2) == []


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[StuckTask]:
    one = StuckTask.start(tmp_path / "fifo")
    try:
        yield one
    finally:
        one.free()


def test_a_real_task_in_d_state_is_found_and_clears(stuck: StuckTask, tmp_path: Path) -> None:
    site = FakeSite(FakeHost(tmp_path / "host"))
    site.host.paths = Paths()
    probe = HungTaskScan(ScanOptions(host=timedelta(seconds=20)))
    answers = []
    for _ in range(4):
        answers.append([one for one in probe.poll(site) if one.subject == stuck.subject])
        site.clock.advance(timedelta(seconds=10))
    assert [type(one) for one in answers[0]] == [Unknown]
    (finding,) = answers[3]
    assert isinstance(finding, Finding)
    assert finding.facts["pid"] == stuck.pid
    assert finding.facts["state"] == "D"
    if os.geteuid() == 0 and processes.kernel_stack(Paths(), stuck.pid):
        assert finding.facts["where"]
    stuck.free()
    assert [one for one in probe.poll(site) if one.subject == stuck.subject] == []


def test_looking_at_the_threads_of_this_machine_costs_little() -> None:
    """A thread costs some 10 µs; thirty times that would break the budget for 5,000 on any machine."""
    paths, pid = Paths(), os.getpid()
    tids = processes.thread_ids(paths, pid) * 200
    before = os.times()
    assert list(processes.tasks_in_state(paths, pid, tids, "D")) == []
    after = os.times()
    spent = after.user + after.system - before.user - before.system
    assert spent / len(tids) < 0.0003
