"""`bandog services restore` drops what a relaunch put in force, and says what the next start does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bandog import overrides
from bandog.cli import main
from bandog.services.registry import Service
from bandog.testing import FakeClock

UNIT = "qwen.service"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A host with one service and no daemon."""
    names = {name: tmp_path / name.lower() for name in ("ETC", "STATE", "RUN")}
    (names["ETC"] / "services.d").mkdir(parents=True)
    (names["ETC"] / "services.d/qwen.yaml").write_text(f"service: qwen\nunit: {UNIT}\nready: {{unit: true}}\n")
    names["RUN"].mkdir()
    return {f"BANDOG_{name}": str(place) for name, place in names.items()}


def put(env: dict[str, str]) -> Path:
    run = Path(env["BANDOG_RUN"])
    service = Service(name="qwen", unit=UNIT)
    overrides.put(run, service, None, without=["0000:e5:00.0"], at=FakeClock().now(), incident=12, env={"A": "1"})
    return overrides.path_of(run, UNIT)


def restore(env: dict[str, str], *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["services", "restore", *more], env=env)
    return result.exit_code, result.output


def test_what_is_in_force_is_dropped_and_told(env: dict[str, str]) -> None:
    place = put(env)
    code, text = restore(env, "qwen")
    assert code == 0 and not place.exists()
    assert "dropped: qwen runs without e5:00.0 with A set since 2026-11-30 12:00 UTC, by incident 12" in text
    assert "the next start of qwen.service applies it (--restart does it now)" in text
    assert restore(env, "qwen") == (0, "qwen runs as its own files say\n")


def test_a_program_reads_the_same(env: dict[str, str]) -> None:
    put(env)
    code, text = restore(env, "qwen", "--json")
    answer = json.loads(text)
    assert code == 0 and answer["unit"] == UNIT and answer["was"].startswith("runs without e5:00.0")


def test_an_unknown_service_is_a_mistake_of_usage(env: dict[str, str]) -> None:
    code, text = restore(env, "quen")
    assert code == 2 and "there is no service 'quen'; known: qwen" in text
