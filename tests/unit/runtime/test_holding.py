"""Who held the loop when the agent died is known at the next start, and is left out after the second time."""

from __future__ import annotations

import contextlib
import json
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


def dies_in(folder: Path, name: str, seconds: float) -> None:
    """A life of the agent that ends without a word while it calls the detector `name`."""
    Holding(folder, at(seconds)).hold(name)


def dies_beside(folder: Path, probes: tuple[str, ...], seconds: float) -> None:
    """A life that ends while these probes are at work."""
    one = Holding(folder, at(seconds))
    with contextlib.ExitStack() as at_work:
        for name in probes:
            at_work.enter_context(one.probe(name))
        found = (folder / "holding").read_bytes()
    (folder / "holding").write_bytes(found)  # the process that would have let go is dead


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
    assert Holding(tmp_path, at(30)).barred == {}
    dies_beside(tmp_path, ("other", "bad"), 30)
    assert set(Holding(tmp_path, at(40)).barred) == {"bad"}


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


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / "holding").symlink_to(target)
    Holding(tmp_path, at(10)).hold("any")
    assert target.read_text() == "keep me"
