"""`bandog services start --adopted`, as bandog-services.service runs it: only what was taken over, and never twice."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bandog.cli import main
from bandog.services.adopt_record import Link, Record

LINK = Link(path="/etc/systemd/system/multi-user.target.wants/mine.service", target="/etc/systemd/system/mine.service")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with two services, of which one is adopted and was started at boot; PID 1 does not answer there."""
    (tmp_path / "proc").symlink_to("/proc")
    folder = tmp_path / "etc/bandog/services.d"
    folder.mkdir(parents=True)
    for name in ("mine", "theirs"):
        (folder / f"{name}.yaml").write_text(f"service: {name}\nunit: {name}.service\n")
    record(tmp_path, "mine.service", LINK)
    return tmp_path


def record(root: Path, unit: str, *links: Link) -> None:
    one = Record(unit=unit, place=f"/etc/systemd/system/{unit}.d/50-bandog.conf", links=links)
    place = root / one.place[1:]
    place.parent.mkdir(parents=True)
    place.write_text(one.head)


def start(root: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["services", "start", *words], env={"BANDOG_ROOT": str(root)})
    return done.exit_code, done.output


def test_only_units_whose_start_was_taken_over(root: Path) -> None:
    record(root, "theirs.service")  # adopted, but nobody started it at boot before
    code, text = start(root, "--adopted", "--dry-run", "--json")
    assert code == 0 and [json.loads(line)["service"] for line in text.splitlines()] == ["mine"]


def test_a_service_that_fails_is_told_and_is_no_failure_of_the_starter(root: Path) -> None:
    code, text = start(root, "--adopted", "--json")
    [line] = [json.loads(line) for line in text.splitlines()]
    assert code == 0 and line["progress"] == "failed" and "systemd did not answer" in line["why"]
    assert start(root, "mine")[0] == 1, "a person hears of it by the exit code"


def test_an_adopted_unit_that_no_service_names_makes_the_plain_start_follow(root: Path) -> None:
    (root / "etc/bandog/services.d/mine.yaml").unlink()
    code, text = start(root, "--adopted")
    assert code == 1 and "adopted, and no service names it: mine.service" in text


def test_a_mistake_in_the_configuration_makes_the_plain_start_follow(root: Path) -> None:
    (root / "etc/bandog/services.d/mine.yaml").write_text("service: [\n")
    assert start(root, "--adopted")[0] == 78


def test_two_starts_at_once_are_refused(root: Path) -> None:
    (root / "run/bandog").mkdir(parents=True)
    with (root / "run/bandog/start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, text = start(root, "mine")
    assert code == 1 and "being started already" in text
