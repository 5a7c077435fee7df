"""The state file: any bytes in it are survived, changes are seen, and the command writes it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvml_driver import READER, Driver

from fakenvml import HERE, State, build, preset

NAMES = st.sampled_from(["gpus", "uuid", "calls", "memory", "0", "total", "pci", "links", "processes", "pid", "rows"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.sampled_from(["0000:17:00.0"]),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(NAMES | st.text(max_size=120), below, max_size=5),
    max_leaves=30,
)
LEAVES = [
    *("driver", "cuda", "gpus.1", "gpus.1.uuid", "gpus.1.pci", "gpus.1.memory", "gpus.1.memory.total", "gpus.1.serial"),
    *("gpus.1.links", "gpus.1.nvlink", "gpus.1.nvlink.remote", "gpus.1.rows.histogram", "gpus.1.processes"),
    *("gpus.1.fabric.cluster", "gpus.1.name", "gpus.1.ecc", "gpus.1.power", "gpus", "calls"),
]
# One process takes all files one after the other, in each the whole of what can be told.
SURVIVOR = f"""
import contextlib, io, os, runpy, sys
reader = runpy.run_path({str(READER)!r})
for line in sys.stdin:
    os.replace(line.strip(), os.environ["FAKENVML_STATE"])
    with contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["reader"]
        try:
            reader["main"]()
        except UnicodeDecodeError:
            pass
    print("alive", flush=True)
"""


class Survivor:
    """A process that reads one state after the other."""

    def __init__(self, driver: Driver) -> None:
        self._next = driver.state.path.parent / "next"
        self._process = driver.start("-c", SURVIVOR)

    def reads(self, data: bytes) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._next.write_bytes(data)
        self._process.stdin.write(f"{self._next}\n".encode())
        self._process.stdin.flush()
        return self._process.stdout.readline() == b"alive\n"

    def end(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def survivor(driver: Driver) -> Any:
    one = Survivor(driver)
    yield one
    one.end()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=400) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_survived(survivor: Survivor, data: bytes) -> None:
    assert survivor.reads(data)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.sampled_from(LEAVES), value=VALUES)
def test_any_value_in_a_good_state_is_survived(survivor: Survivor, place: str, value: Any) -> None:
    state = preset(4)
    *above, last = place.split(".")
    here: Any = state
    for name in above:
        here = here[int(name) if isinstance(here, list) else name]
    here[int(last) if isinstance(here, list) else last] = value
    assert survivor.reads(json.dumps(state).encode())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 14_000), data=st.binary(max_size=3))
def test_a_state_with_some_bytes_changed_or_cut_off_is_survived(survivor: Survivor, at: int, data: bytes) -> None:
    good = json.dumps(preset(4)).encode()
    assert survivor.reads(good[:at] + data + good[at + len(data) :])
    assert survivor.reads(good[:at])


def test_a_state_of_any_size_is_survived(survivor: Survivor) -> None:
    for data in (b"[" * 100_000, b"[1," * 50_000, b'"' + b"x" * 2_000_000, b"{" + b'"a":' * 9_999, b"1" * 2_000_000):
        assert survivor.reads(data)


def test_rubbish_leaves_what_was_read_before(driver: Driver) -> None:
    code = """
import sys, os, pynvml as n
n.nvmlInit()
with open(os.environ["FAKENVML_STATE"] + "~", "w") as file:
    file.write('{"gpus": [')
os.replace(os.environ["FAKENVML_STATE"] + "~", os.environ["FAKENVML_STATE"])
print(n.nvmlDeviceGetCount())
"""
    assert driver.run("-c", code) == 4


def test_of_two_values_of_one_name_the_last_counts_as_in_python(driver: Driver) -> None:
    text = '{"gpus": [{"uuid": "GPU-1", "power": 1, "name": "a\\"b\\\\c", "power": 2, "power": 3}]}'
    driver.state.path.write_text(text)
    told = driver.read()["gpus"][0]
    assert (told["UUID"], told["PowerUsage"], told["Name"]) == ("GPU-1", 3, 'a"b\\c')


def test_a_change_between_two_calls_is_seen(driver: Driver) -> None:
    told = driver.read({"gpus.1.temperature": 90, "gpus.2.missing": True})["gpus"]
    assert told[1]["Temperature"] == 90
    assert told[3]["Index"] == 2


def test_writers_do_not_undo_each_other(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 4)

    def write(place: int) -> None:
        for power in range(20):
            State(tmp_path / "state").set(f"gpus.{place}.power", power)

    writers = [threading.Thread(target=write, args=(place,)) for place in range(4)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert [one["power"] for one in state.read()["gpus"]] == [19] * 4


def test_the_library_is_compiled_once(tmp_path: Path) -> None:
    first = build(tmp_path)
    (library,) = first.iterdir()
    before = library.stat()
    assert build(tmp_path) == first
    assert library.stat().st_ino == before.st_ino


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without its library must fail, never be left out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="cc"):
        build(tmp_path)


# --- the command ---------------------------------------------------------------------------------------------------


def command(*words: str, as_module: bool = False) -> subprocess.CompletedProcess[str]:
    start = ["-m", "tests.fakenvml"] if as_module else ["-I", "-S", str(HERE)]
    return subprocess.run(
        [sys.executable, *start, *words],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("as_module", [False, True], ids=["folder, standard library only", "module"])
def test_the_command_changes_and_shows_a_state(tmp_path: Path, as_module: bool) -> None:
    place = str(tmp_path / "state")
    assert command(place, "preset", "8", as_module=as_module).returncode == 0
    assert command(place, "set", "2.lost=true", "gpus.3.name=a=b", "driver=1.2.3", as_module=as_module).returncode == 0
    assert command(place, "del", "1.recovery", as_module=as_module).returncode == 0
    shown = json.loads(command(place, "show", as_module=as_module).stdout)
    assert len(shown["gpus"]) == 8
    assert (shown["gpus"][2]["lost"], shown["gpus"][3]["name"], shown["driver"]) == (True, "a=b", "1.2.3")
    assert "recovery" not in shown["gpus"][1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("explode",), 2, "STATE preset"),
        (("set", "2.lost"), 2, "STATE preset"),
        (("preset", "5"), 2, "STATE preset"),
        (("set", "2.lsot=true"), 1, "gpus.2.lsot"),
        (("set", "9.lost=true"), 1, "out of range"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    State(tmp_path / "state", 4)
    done = command(str(tmp_path / "state"), *words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_that_there_is_no_state(tmp_path: Path) -> None:
    done = command(str(tmp_path / "state"), "show")
    assert done.returncode == 1
    assert "No such file" in done.stderr


def test_the_third_of_four_is_the_card_of_the_stories(tmp_path: Path) -> None:
    cards = State(tmp_path / "state", 4).read()["gpus"]
    assert cards[2]["pci"] == "0000:e5:00.0"
    assert len({one["uuid"] for one in cards}) == 4
