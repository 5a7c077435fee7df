"""A program that stays answers line by line in time, or is ended; one in D state is left and never doubled."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bandog.host.child import Children
from bandog.host.resident import Resident
from bandog.host.site import Answer

SOON = timedelta(seconds=10)
AT_ONCE = timedelta(milliseconds=300)
ECHO = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children(term_grace=AT_ONCE, kill_grace=AT_ONCE)
    yield made
    made.close()


@pytest.fixture
def resident(children: Children) -> Iterator[Callable[[str], Resident]]:
    made: list[Resident] = []

    def make(code: str) -> Resident:
        made.append(Resident(children, [sys.executable, "-I", "-c", code], limit=200_000))
        return made[-1]

    yield make
    for one in made:
        one.end()


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        pause.wait(0.01)


def test_one_child_answers_every_question(resident: Callable[[str], Resident]) -> None:
    one = resident(ECHO)
    assert [one.ask(word, deadline=SOON).line for word in (b"abc", b"x" * 100_000)] == [b"cba", b"x" * 100_000]
    assert one.started == 1


def test_it_has_a_clean_environment_and_no_descriptor_of_ours(resident: Callable[[str], Resident]) -> None:
    one = resident("import os\ninput()\nprint(sorted(os.environ), sorted(os.listdir('/proc/self/fd')), flush=True)")
    with Path("/dev/null").open() as _:
        said = one.ask(b"", deadline=SOON).line
    # The fourth is the listing's own.
    assert said == b"['LANG', 'PATH'] ['0', '1', '2', '3']"


def test_one_that_ends_says_how_and_the_next_question_starts_another(resident: Callable[[str], Resident]) -> None:
    one = resident("import sys\nline = input()\nif line == 'die': sys.exit('no driver')\nprint('fine', flush=True)")
    assert one.ask(b"die", deadline=SOON) == Answer(line=None, why="it ended with status 1: no driver")
    assert one.pid is None
    assert one.ask(b"live", deadline=SOON).line == b"fine"
    # It has ended meanwhile, so that the question finds a broken pipe or an end.
    assert one.ask(b"live", deadline=SOON).line is None
    assert one.started == 2


def test_one_that_was_killed_by_a_signal_says_so(resident: Callable[[str], Resident]) -> None:
    one = resident("import os\ninput()\nos.kill(os.getpid(), 9)")
    assert one.ask(b"", deadline=SOON).why == "it ended by signal 9"


def test_one_that_does_not_answer_is_ended(children: Children, resident: Callable[[str], Resident]) -> None:
    one = resident("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ninput()\ntime.sleep(600)")
    began = time.monotonic()
    answer = one.ask(b"", deadline=timedelta(seconds=1))
    assert answer == Answer(line=None, why="it gave no answer", timed_out=True)
    assert time.monotonic() - began < 5
    assert (one.pid, children.stuck) == (None, ())


@pytest.mark.parametrize("said", ["'a\\nb'", "'x' * 300_000"])
def test_rubbish_ends_it(resident: Callable[[str], Resident], said: str) -> None:
    one = resident(f"input()\nprint({said}, flush=True)\ninput()")
    assert one.ask(b"", deadline=SOON).why == "it talks rubbish"
    assert one.pid is None


def test_one_that_talks_on_its_standard_error_is_not_blocked(resident: Callable[[str], Resident]) -> None:
    one = resident("import sys\nfor line in sys.stdin:\n  sys.stderr.write('x' * 300_000)\n  print('fine', flush=True)")
    assert [one.ask(b"", deadline=SOON).line for _ in range(3)] == [b"fine"] * 3


def test_one_that_does_not_read_is_ended(resident: Callable[[str], Resident]) -> None:
    one = resident("import time\ntime.sleep(600)")
    assert one.ask(b"x" * 150_000, deadline=AT_ONCE).timed_out


def test_a_second_question_meanwhile_is_refused(resident: Callable[[str], Resident]) -> None:
    one = resident("input()\nimport time\ntime.sleep(600)")
    first = threading.Thread(target=one.ask, args=(b"",), kwargs={"deadline": timedelta(seconds=1)})
    first.start()
    until(lambda: one.pid is not None)
    assert one.ask(b"", deadline=SOON) == Answer(
        line=None, why="an earlier question has not been answered", timed_out=True, stuck=True
    )
    first.join()


def test_one_in_d_state_is_left_and_no_second_one_is_started_until_it_ends(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    spawn = f"os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, 0, 0)])"
    code = f"import os\nif input() == 'hang': {spawn}\nprint('fine', flush=True)"
    os.mkfifo(fifo)
    children = Children(term_grace=AT_ONCE, kill_grace=AT_ONCE)
    children.graces = children.graces[:1]  # SIGKILL would end this D state; SIGTERM does not
    one = Resident(children, [sys.executable, "-I", "-c", code])
    try:
        assert one.ask(b"hang", deadline=timedelta(seconds=1)).stuck
        assert (children.abandoned, len(children.stuck)) == (1, 1)
        again = one.ask(b"fine", deadline=SOON)
        assert (again.line, again.stuck, one.stuck, one.started) == (None, True, True, 1)
    finally:
        with fifo.open("w"):
            pass
    until(lambda: not one.stuck)
    assert one.ask(b"fine", deadline=SOON).line == b"fine"
    one.end()
    children.close()


def test_it_dies_with_the_thread_that_makes_children(children: Children, resident: Callable[[str], Resident]) -> None:
    one = resident("while True: print(input(), flush=True)")
    assert one.ask(b"x", deadline=SOON).line == b"x"
    pid = one.pid
    children.close()
    assert one.ask(b"x", deadline=SOON).line in (b"x", None)  # the signal is on its way
    until(lambda: _gone(pid))


def _gone(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
