"""Who held the loop when the agent died is known at the next start, and is left out after the second time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bandog.domain.model import Instant
from bandog.runtime.guard import Guard
from bandog.runtime.holding import LOADING, Holding

BEGIN = datetime(2026, 11, 30, tzinfo=UTC)


def at(seconds: float) -> Instant:
    passed = timedelta(seconds=seconds)
    return Instant(boot_id="b", boottime=passed, utc=BEGIN + passed)


def dies_in(folder: Path, name: str, seconds: float, record: int = 0) -> None:
    """A life of the agent that ends without a word while it calls the detector `name`."""
    Holding(folder, at(seconds)).hold(name, call=record)


def dies_beside(folder: Path, probes: tuple[str, ...], seconds: float) -> Mapping[str, str]:
    """A life that ends while these probes are at work; returns who was barred in it."""
    one = Holding(folder, at(seconds))
    with contextlib.ExitStack() as at_work:
        for name in probes:
            at_work.enter_context(one.probe(name))
        found = (folder / "holding").read_bytes()
    (folder / "holding").write_bytes(found)  # the process that would have let go is dead
    return one.barred


def test_the_second_death_within_an_hour_bars_the_plugin(tmp_path: Path) -> None:
    dies_in(tmp_path, "bad", 10)
    assert Holding(tmp_path, at(20)).barred == {}
    dies_in(tmp_path, "bad", 20)
    barred = Holding(tmp_path, at(30)).barred
    assert set(barred) == {"bad"}
    assert "2 times" in barred["bad"]
    assert "systemctl restart bandog" in barred["bad"]


def test_a_barred_plugin_stays_out_over_later_unclean_ends(tmp_path: Path) -> None:
    dies_in(tmp_path, "bad", 10)
    dies_in(tmp_path, "bad", 20)
    Holding(tmp_path, at(30))  # killed by somebody, with nothing at work
    assert set(Holding(tmp_path, at(40)).barred) == {"bad"}


def test_two_deaths_at_different_records_are_chance_and_three_are_none(tmp_path: Path) -> None:
    dies_in(tmp_path, "busy", 10, record=1)
    dies_in(tmp_path, "busy", 20, record=2)
    last = Holding(tmp_path, at(30))
    assert last.barred == {}
    last.hold("busy", call=3)
    assert set(Holding(tmp_path, at(40)).barred) == {"busy"}


def test_a_death_in_an_earlier_boot_is_nobodys(tmp_path: Path) -> None:
    for second, boot in ((10, "a"), (20, "b"), (30, "c")):
        Holding(tmp_path, dataclasses.replace(at(second), boot_id=boot)).hold("good")
    assert Holding(tmp_path, dataclasses.replace(at(40), boot_id="d")).barred == {}


def test_deaths_of_two_plugins_are_not_added_up(tmp_path: Path) -> None:
    dies_in(tmp_path, "one", 10)
    dies_in(tmp_path, "other", 20)
    assert Holding(tmp_path, at(30)).barred == {}


def test_deaths_an_hour_apart_are_chance(tmp_path: Path) -> None:
    dies_in(tmp_path, "good", 10)
    Holding(tmp_path, at(20)).hold("good")
    assert Holding(tmp_path, at(20 + 3601)).barred == {}


def test_a_clean_stop_forgives(tmp_path: Path) -> None:
    dies_in(tmp_path, "bad", 10)
    one = Holding(tmp_path, at(20))
    one.hold("bad")
    one.close()
    dies_in(tmp_path, "bad", 30)
    assert Holding(tmp_path, at(40)).barred == {}


def test_a_call_that_ended_is_not_blamed(tmp_path: Path) -> None:
    for second in (10, 20, 30):
        guard = Guard(holding=Holding(tmp_path, at(second)))
        with guard.watch("good"):
            pass
    assert Holding(tmp_path, at(40)).barred == {}


def test_a_probe_is_barred_after_three_deaths_in_a_row(tmp_path: Path) -> None:
    dies_beside(tmp_path, ("slow", "bad"), 10)
    dies_beside(tmp_path, ("bad",), 20)
    assert dies_beside(tmp_path, ("other", "bad"), 30) == {}
    assert set(dies_beside(tmp_path, (), 40)) == {"bad"}
    assert set(Holding(tmp_path, at(50)).barred) == {"bad"}, "it stays out over later unclean ends"


def test_a_death_with_nobody_at_work_breaks_the_row_of_a_probe(tmp_path: Path) -> None:
    for second, probes in enumerate((("good",), ("good",), (), ("good",), ("good",))):
        dies_beside(tmp_path, probes, second)
    assert Holding(tmp_path, at(10)).barred == {}


def test_a_probe_beside_a_detector_that_ends_the_agent_is_not_blamed(tmp_path: Path) -> None:
    for second in (10, 20, 30):
        one = Holding(tmp_path, at(second))
        with one.probe("good"):
            one.hold("bad")
            found = (tmp_path / "holding").read_bytes()
        (tmp_path / "holding").write_bytes(found)
    assert set(Holding(tmp_path, at(40)).barred) == {"bad"}


def proves(folder: Path, seconds: float, before: int) -> Mapping[str, str]:
    """A life that ends in the proof of an action, after so many that came back; returns who was barred in it."""
    one = Holding(folder, at(seconds))
    for _ in range(before):
        with one.proof("act", "prove"):
            pass
    with one.proof("act", "proof_time"):
        pass
    with one.proof("act", "prove"):
        found = (folder / "holding").read_bytes()
    (folder / "holding").write_bytes(found)
    return one.barred


def test_an_action_whose_proof_never_comes_back_is_barred_after_three_deaths_in_a_row(tmp_path: Path) -> None:
    assert [set(proves(tmp_path, second, before=0)) for second in (10, 20, 30, 40)] == [set(), set(), set(), {"act"}]


def test_an_action_whose_proof_came_back_in_the_same_life_is_not_blamed(tmp_path: Path) -> None:
    assert [proves(tmp_path, second, before=1) for second in (10, 20, 30, 40)] == [{}] * 4


def test_a_plugin_at_whose_loading_the_agent_dies_is_barred_after_five_times_in_a_row(tmp_path: Path) -> None:
    for second in (10, 20, 30, 40, 50):
        one = Holding(tmp_path, at(second))
        assert one.barred == {}
        one.hold("bad", LOADING)
    assert set(Holding(tmp_path, at(60)).barred) == {"bad"}


def test_deaths_at_the_loading_of_several_plugins_are_chance(tmp_path: Path) -> None:
    for second, name in enumerate(("one", "one", "one", "one", "other", "one")):
        Holding(tmp_path, at(second)).hold(name, LOADING)
    assert Holding(tmp_path, at(60)).barred == {}


def test_a_probe_that_ended_is_not_blamed(tmp_path: Path) -> None:
    for second in (10, 20, 30):
        with Holding(tmp_path, at(second)).probe("good"):
            pass
    assert Holding(tmp_path, at(40)).barred == {}


def test_more_probes_at_work_than_can_be_told_apart_do_no_harm(tmp_path: Path) -> None:
    dies_beside(tmp_path, tuple(f"probe-{number}" for number in range(100)), 10)
    assert Holding(tmp_path, at(20)).barred == {}


def test_a_long_name_is_cut_and_not_spilled_over_the_next(tmp_path: Path) -> None:
    one = Holding(tmp_path, at(10))
    one.hold("ü" * 500)
    with one.probe("short"):
        pass
    deaths = Holding(tmp_path, at(20))
    assert deaths.barred == {}
    assert json.loads((tmp_path / "deaths.json").read_text())[0]["probes"] == []


def test_without_a_folder_nothing_is_remembered_and_everything_goes_on(tmp_path: Path) -> None:
    one = Holding(tmp_path / "absent", at(10))
    one.hold("any")
    one.let_go()
    with one.probe("any"):
        pass
    one.close()
    assert one.barred == {}


@pytest.mark.parametrize("name", ["holding", "deaths.json"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rubbish=st.binary(max_size=4096))
def test_rubbish_in_the_files_is_harmless(tmp_path: Path, name: str, rubbish: bytes) -> None:
    (tmp_path / "deaths.json").unlink(missing_ok=True)
    (tmp_path / name).write_bytes(rubbish)
    Holding(tmp_path, at(10)).close()


@pytest.mark.parametrize("name", ["holding", "deaths.json"])
def test_a_fifo_or_a_folder_in_place_of_a_file_holds_nobody(tmp_path: Path, name: str) -> None:
    for make in (os.mkfifo, os.mkdir):
        folder = tmp_path / make.__name__
        folder.mkdir()
        make(folder / name)
        one = Holding(folder, at(10))
        one.hold("any")
        assert one.barred == {}
        one.close()


LIVING = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bandog.domain.model import Instant
from bandog.runtime.holding import Holding

one = Holding(Path(sys.argv[1]), Instant(boot_id="b", boottime=timedelta(seconds=5), utc=datetime.now(UTC)))
one.hold("good")
print("at work", flush=True)
sys.stdin.readline()
"""


def test_a_second_agent_neither_judges_nor_forgets_for_one_that_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIVING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"at work\n"
        second = Holding(tmp_path, at(10))
        assert second.barred == {}
        second.hold("other")
        second.close()
        other.kill()
    assert not (tmp_path / "deaths.json").exists()
    Holding(tmp_path, at(20))
    assert [one["loop"] for one in json.loads((tmp_path / "deaths.json").read_text())] == ["good"]


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / "holding").symlink_to(target)
    Holding(tmp_path, at(10)).hold("any")
    assert target.read_text() == "keep me"
