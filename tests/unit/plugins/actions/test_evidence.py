"""`evidence` keeps what it can get within its time, names what it cannot, and never fails the ladder."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from action_bench import UNIT, Bench

from bandog import ChildOutcome, ResultState
from bandog_plugins.actions._bundle import Bundle, rotate
from bandog_plugins.actions.evidence import Evidence, EvidenceOptions

DAY = timedelta(days=1)
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def answers(argv: Sequence[str]) -> ChildOutcome:
    return ChildOutcome(code=0, out=f"{argv[0]} says so\n".encode())


def test_a_bundle_holds_a_piece_for_each_question(bench: Bench) -> None:
    bench.child_results = answers
    bench.host.write("/proc/meminfo", "MemTotal: 1 kB\n")
    result = Evidence().run(bench.request("evidence", service=None), bench)
    assert result.state is ResultState.DONE
    place = Path(result.facts["path"])
    assert {entry.name for entry in place.iterdir()} >= {
        "request.json",
        "host.txt",
        "kernel.txt",
        "kernel-journal.txt",
        f"status-{UNIT}.txt",
        f"log-{UNIT}.txt",
        "processes.txt",
        "nvidia-smi.txt",
        "disks.txt",
    }
    assert "MemTotal: 1 kB" in (place / "host.txt").read_text()
    assert place.parent.name == "12"


def test_it_is_for_root_only(bench: Bench) -> None:
    old = os.umask(0)
    try:
        place = Path(Evidence().run(bench.request("evidence"), bench).facts["path"])
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in place.iterdir()} == {0o600}


def test_what_cannot_be_had_is_named_with_its_reason(bench: Bench) -> None:
    bench.child_results = lambda argv: ChildOutcome(code=None, timed_out=True, stuck=argv[0] == "nvidia-smi")
    result = Evidence().run(bench.request("evidence"), bench)
    assert result.facts["skipped"]["nvidia-smi.txt"] == "nvidia-smi did not end in time"
    assert result.facts["skipped"]["memory-errors.txt"] == "no memory controller is registered with EDAC"
    assert "nvidia-smi.txt: nvidia-smi did not end in time" in (Path(result.facts["path"]) / "SKIPPED.txt").read_text()


def test_what_a_program_said_before_it_hung_is_kept(bench: Bench) -> None:
    bench.child_results = lambda argv: ChildOutcome(code=None, timed_out=True, out=b"half\n")
    place = Path(Evidence().run(bench.request("evidence"), bench).facts["path"])
    assert (place / "processes.txt").read_text() == "half\n\n[ps did not end in time]\n"


def test_it_ends_in_time_when_every_program_hangs(bench: Bench) -> None:
    began = bench.clock.now()

    def hangs(argv: Sequence[str]) -> ChildOutcome:
        bench.clock.advance(timedelta(seconds=9))
        return ChildOutcome(code=None, timed_out=True)

    bench.child_results = hangs
    result = Evidence().run(bench.request("evidence"), bench)
    assert bench.clock.now().since(began) < timedelta(seconds=40)
    assert result.facts["skipped"]["disks.txt"] == "no time was left"


def test_a_stuck_task_is_shown_by_the_files_that_cannot_block(bench: Bench) -> None:
    bench.host.task(
        4711, "VLLM::Worker_TP", "D", wchan="uvm_va_space_destroy", stack="[<0>] uvm_va_space_destroy+0x1/0x2\n"
    )
    bench.host.task(4712, "idle", "S")
    place = Path(Evidence().run(bench.request("evidence"), bench).facts["path"])
    text = (place / "stuck-tasks.txt").read_text()
    assert "== 'VLLM::Worker_TP' pid 4711" in text
    assert "uvm_va_space_destroy+0x1/0x2" in text
    assert "idle" not in text


def test_memory_error_counters_are_kept(bench: Bench) -> None:
    mc = "/sys/devices/system/edac/mc/mc0"
    for name, value in {
        "ce_count": "3",
        "ue_count": "0",
        "dimm0/dimm_label": "P0H0",
        "dimm0/dimm_ce_count": "3",
    }.items():
        bench.host.write(f"{mc}/{name}", value + "\n")
    place = Path(Evidence().run(bench.request("evidence"), bench).facts["path"])
    text = (place / "memory-errors.txt").read_text()
    assert "mc0/dimm0: dimm_label=P0H0" in text
    assert "ce_count=3" in text


def test_the_gpu_driver_is_only_asked_in_a_child(bench: Bench) -> None:
    bench.host.write("/proc/driver/nvidia/gpus/0000:e5:00.0/information", "")
    Evidence().run(bench.request("evidence"), bench)
    asked = next(argv for argv in bench.children if argv[0] == "tail")
    assert asked[-1].endswith("gpus/0000:e5:00.0/information")


def test_a_pid_leads_to_its_unit_and_no_other_is_asked(bench: Bench) -> None:
    bench.systemd.place(4711, "user-job.scope")
    Evidence().run(bench.request("evidence", service=None, subject="task:x", facts={"pid": 4711}), bench)
    logs = [argv for argv in bench.children if "--lines=200" in argv]
    assert [argv[-1] for argv in logs] == ["--unit=user-job.scope"]


def test_a_unit_name_that_looks_like_an_option_reaches_no_command_line(bench: Bench) -> None:
    Evidence().run(
        bench.request("evidence", service=None, subject="task:x", facts={"unit": "--file=/x.service"}), bench
    )
    assert not any("--file" in word for argv in bench.children for word in argv)


def test_a_state_directory_that_cannot_be_written_gives_a_bundle_in_run(bench: Bench) -> None:
    bench.host.write("/var/lib/bandog/evidence", "a file where the folder should be")
    result = Evidence().run(bench.request("evidence"), bench)
    assert Path(result.facts["path"]).is_relative_to(bench.paths.run)


def test_nowhere_to_write_is_said_and_is_no_failure(bench: Bench) -> None:
    bench.host.write("/var/lib/bandog/evidence", "")
    bench.host.write("/run/bandog/evidence", "")
    result = Evidence().run(bench.request("evidence"), bench)
    assert result.state is ResultState.DONE
    assert result.why.startswith("no evidence could be kept")


def test_pieces_and_bundle_are_capped(bench: Bench) -> None:
    bench.child_results = lambda argv: ChildOutcome(code=0, out=b"x" * 5000)
    options = EvidenceOptions(max_piece=1000, max_each=4000)
    result = Evidence(options).run(bench.request("evidence"), bench)
    sizes = [entry.stat().st_size for entry in Path(result.facts["path"]).iterdir()]
    assert max(sizes) <= 1000
    assert sum(sizes) <= 4000
    assert "the bundle is full" in result.facts["skipped"].values()


def test_of_a_log_that_is_too_long_the_end_is_kept(bench: Bench) -> None:
    bench.child_results = lambda argv: ChildOutcome(code=0, out=b"old " * 500 + b"newest")
    options = EvidenceOptions(max_piece=100)
    place = Path(Evidence(options).run(bench.request("evidence"), bench).facts["path"])
    assert (place / "kernel.txt").read_bytes().endswith(b"newest")


def bundle(root: Path, incident: int, day: int, size: int = 100) -> Path:
    made = Bundle.begin(root / str(incident), at=NOW - day * DAY, request=f"{incident}.1", room=1 << 20)
    made.add("a.txt", b"x" * size)
    return made.finish()


def test_old_bundles_go_and_the_newest_stay_whatever_the_clock_says(tmp_path: Path) -> None:
    places = [bundle(tmp_path, number, day) for number, day in enumerate((1, 2, 95, 100, 200))]
    assert rotate(tmp_path, max_total=1 << 30, keep=90 * DAY, now=NOW) == 2
    assert [place.exists() for place in places] == [True, True, True, False, False]


def test_the_oldest_go_when_all_together_are_too_large(tmp_path: Path) -> None:
    places = [bundle(tmp_path, number, number) for number in range(6)]
    rotate(tmp_path, max_total=450, keep=90 * DAY, now=NOW)
    assert [place.exists() for place in places] == [True, True, True, True, False, False]


def test_what_a_crash_left_half_written_goes_and_strange_folders_stay(tmp_path: Path) -> None:
    bundle(tmp_path, 1, 1)
    (tmp_path / "1/.partial-20261101T000000Z-1.1").mkdir()
    (tmp_path / "1/notes of a person").mkdir()
    (tmp_path / "link").symlink_to("/")
    rotate(tmp_path, max_total=0, keep=0 * DAY, now=NOW)
    assert sorted(entry.name for entry in (tmp_path / "1").iterdir())[-1] == "notes of a person"
    assert not list((tmp_path / "1").glob(".partial*"))
