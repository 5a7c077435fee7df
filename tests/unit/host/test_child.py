"""Children end in time, leave nothing behind, inherit nothing of ours and die with us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bandog.host.child import Children

SOON = timedelta(seconds=10)
AT_ONCE = timedelta(milliseconds=300)


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children(term_grace=AT_ONCE, kill_grace=AT_ONCE)
    yield made
    made.close()


def python(code: str) -> list[str]:
    """A program of ours for a child."""
    return [sys.executable, "-I", "-c", code]


def until(condition: object, seconds: float = 10) -> None:
    """Wait for a condition with a deadline."""
    assert callable(condition)
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        pause.wait(0.01)


def alive(pid: int) -> bool:
    """True while there is a task of that pid that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_errors_and_status_come_back(children: Children) -> None:
    outcome = children.run(["sh", "-c", "cat; echo bad >&2; exit 3"], deadline=SOON, stdin=b"hello")
    assert (outcome.code, outcome.out, outcome.err, outcome.ok) == (3, b"hello", b"bad\n", False)


def test_a_signal_is_told_as_a_negative_status(children: Children) -> None:
    assert children.run(["sh", "-c", "kill -9 $$"], deadline=SOON).code == -9


def test_a_program_that_does_not_exist_ends_with_127(children: Children) -> None:
    outcome = children.run(["no-such-program"], deadline=SOON)
    assert (outcome.code, outcome.err.startswith(b"no-such-program: no such program")) == (127, True)


@pytest.mark.parametrize("argv", [[], ["true", "a\0b"]])
def test_arguments_that_cannot_be_passed_end_with_127(children: Children, argv: list[str]) -> None:
    assert children.run(argv, deadline=SOON).code == 127


def test_the_environment_is_clean(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("SECRET", "x")
    outcome = children.run(["env"], deadline=SOON, env={"A": "1", "NOTIFY_SOCKET": "/leak"})
    names = {line.partition(b"=")[0] for line in outcome.out.splitlines()}
    assert names == {b"PATH", b"LANG", b"A"}


def test_it_has_its_own_session_no_files_of_ours_and_is_preferred_by_the_memory_killer(children: Children) -> None:
    code = (
        "import os,time\n"
        "while open('/proc/self/oom_score_adj').read() != '500\\n': time.sleep(0.01)\n"
        "print(os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))[:4], os.getcwd())"
    )
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        outcome = children.run(python(code), deadline=SOON)
    finally:
        os.close(kept)
    # The fourth is the listing's own.
    assert outcome.out == b"True ['0', '1', '2', '3'] /\n", outcome


def test_output_beyond_the_limit_is_read_and_dropped(children: Children) -> None:
    outcome = children.run(python("print('x' * 3_000_000)"), deadline=SOON, limit=1000)
    assert (outcome.code, outcome.out) == (0, b"x" * 1000)


def test_much_input_and_much_output_do_not_lock_each_other(children: Children) -> None:
    data = b"x" * 900_000
    assert children.run(["cat"], deadline=SOON, stdin=data).out == data


def test_a_program_that_does_not_read_its_input_ends_well(children: Children) -> None:
    assert children.run(["true"], deadline=SOON, stdin=b"x" * 900_000).ok


def test_a_child_past_its_deadline_is_ended_with_its_whole_group(children: Children) -> None:
    began = time.monotonic()
    outcome = children.run(["sh", "-c", "sleep 60 & echo $!; wait"], deadline=AT_ONCE)
    assert (outcome.code, outcome.timed_out, outcome.stuck) == (None, True, False)
    assert time.monotonic() - began < 2
    until(lambda: not alive(int(outcome.out)))


def test_a_child_that_ignores_sigterm_is_killed(children: Children) -> None:
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    outcome = children.run(python(code), deadline=timedelta(seconds=1))
    assert (outcome.timed_out, outcome.stuck) == (True, False)


def test_what_it_leaves_running_is_ended_and_does_not_keep_us(children: Children) -> None:
    began = time.monotonic()
    outcome = children.run(["sh", "-c", "sleep 60 & echo $!"], deadline=SOON)
    assert outcome.code == 0
    assert time.monotonic() - began < 5
    until(lambda: not alive(int(outcome.out)))


def test_no_zombies_stay(children: Children) -> None:
    for _ in range(5):
        children.run(["true"], deadline=SOON)
    me = os.getpid()
    tasks = [Path(one) / "stat" for one in Path("/proc").iterdir() if one.name.isdigit()]
    zombies = []
    for stat in tasks:
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == me:
                zombies.append(stat)
    assert zombies == []


BLOCKED = """
import os, sys
os.write(1, b'%d\\n' % os.getpid())
os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""


def test_a_child_in_d_state_is_killed_or_abandoned_in_time(children: Children, tmp_path: Path) -> None:
    """DESIGN section 13: a parent in vfork waits in D for a child that opens a FIFO; SIGTERM does nothing."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    began = time.monotonic()
    outcome = children.run([*python(BLOCKED), str(fifo)], deadline=timedelta(seconds=1))
    assert outcome.timed_out
    assert time.monotonic() - began < 5


def test_one_that_survives_sigkill_is_abandoned_counted_not_started_again_and_reaped(
    children: Children, loop_disk: Any
) -> None:
    loop_disk.freeze()
    try:
        outcome = children.run(["touch", str(loop_disk.mount / "file")], deadline=AT_ONCE)
        assert (outcome.code, outcome.timed_out, outcome.stuck) == (None, True, True)
        assert (children.stuck, children.abandoned) == (("touch",), 1)
        again = children.run(["touch", "/dev/null"], deadline=AT_ONCE)
        assert (again.stuck, again.err) == (True, b"an earlier touch still hangs")
        assert children.run(["true"], deadline=SOON).ok, "other programs go on"
    finally:
        loop_disk.thaw()
    until(lambda: children.run(["true"], deadline=SOON).ok and not children.stuck)
    assert children.run(["touch", "/dev/null"], deadline=SOON).ok


DIES = """
import threading, sys
from datetime import timedelta
from bandog.host.child import Children
children = Children()
# The thread that asks ends at once; the child must live on until the process ends.
threading.Thread(target=lambda: children.run(['sh', '-c', 'echo $$ > %s; sleep 60'], deadline=timedelta(seconds=60)),
                 daemon=True).start()
sys.stdin.read()
"""


def test_children_die_with_us_even_if_we_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", DIES % note], stdin=subprocess.PIPE) as us:
        until(lambda: note.exists() and note.read_text().endswith("\n"))
        pid = int(note.read_text())
        assert alive(pid)
        us.send_signal(signal.SIGKILL)
        us.wait()
    until(lambda: not alive(pid))


def test_two_python_programs_are_not_taken_for_one() -> None:
    """A stuck child of one module must not keep another module from being started."""
    from bandog.host.child import name_of

    assert name_of(["/usr/bin/python3", "-I", "-m", "bandog.sources.journal_child"]) == "bandog.sources.journal_child"
    assert name_of(["/usr/bin/nvidia-smi", "-q"]) == "nvidia-smi"
    assert name_of(["/usr/bin/mount", "-m"]) == "mount"
