"""`bandog gpu` reads the record without a daemon, and says in one line what it cannot do."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from bandog.cli import main
from bandog.domain.gpus import Exclusion, GpuEvent, KnownGpu
from bandog.store import Store
from bandog.store.rows import AddGpuEvent, SaveGpu
from bandog.testing import FakeClock

NOW = FakeClock().now()
OUT = Exclusion(reason="second Xid 94", by="xid-contained-ecc", since=NOW, xid=94, state="final")
CARD = KnownGpu(
    uuid="GPU-5a",
    slot="0000:e5:00.0",
    serial="16530",
    part_number="900-21010",
    name="NVIDIA\x1b[2J [bold]H200",
    first_seen=NOW,
    last_seen=NOW,
    lemon=True,
    exclusions=(OUT,),
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A host with a record and no daemon."""
    names = {name: tmp_path / name.lower() for name in ("ETC", "STATE", "RUN")}
    for place in names.values():
        place.mkdir()

    async def keep() -> None:
        store = Store(names["STATE"] / "bandog.db", clock=FakeClock())
        await store.open(timedelta(seconds=5))
        xid = GpuEvent(uuid="GPU-5a", at=NOW, what="xid", data={"xid": 94, "count": 2, "text": "Contained\x1b[2J"})
        await store.commit(SaveGpu(card=CARD), AddGpuEvent(event=xid))
        await store.close(timedelta(seconds=5))

    asyncio.run(keep())
    return {f"BANDOG_{name}": str(place) for name, place in names.items()}


def run(env: dict[str, str], *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["gpu", *words], env=env)
    return done.exit_code, done.output


def test_the_list_needs_no_daemon_and_hides_that_from_nobody(env: dict[str, str]) -> None:
    code, text = run(env, "list")
    assert code == 1
    assert "serial 16530" in text and "unknown: bandog is not running" in text
    assert "kept out for good since 2026-11-30 by xid-contained-ecc: second Xid 94 (bandog gpu return)" in text
    assert "lemon" in text and "2 Xid 94 since 30 Nov 2026" in text
    assert "\x1b[2J" not in text
    [line] = [json.loads(line) for line in run(env, "list", "--json")[1].splitlines()]
    assert line["uuid"] == "GPU-5a" and line["exclusion"]["xid"] == 94


@pytest.mark.parametrize("name", ["0000:E5:00", "00000000:e5:00.0", "gpu-5A"])
def test_the_history_of_a_card_is_told_by_any_spelling(env: dict[str, str], name: str) -> None:
    code, text = run(env, "history", name)
    assert code == 0, text
    assert "part number: 900-21010" in text and "xid 94, count 2" in text
    assert "\x1b[2J" not in text
    assert json.loads(run(env, "history", name, "--json")[1])["events"][0]["data"]["xid"] == 94


@pytest.mark.parametrize(
    ("name", "words"),
    [("0000:e6:00.0", "nearest: 0000:e5:00.0 (GPU-5a)"), ("GPU-6", "nearest"), ("0", "is an index"), ("\x1b", "?")],
)
def test_a_wrong_name_is_one_line(env: dict[str, str], name: str, words: str) -> None:
    code, text = run(env, "history", name)
    assert code == 1
    assert words in text and len(text.splitlines()) == 1


def test_an_order_needs_the_daemon_and_a_reason(env: dict[str, str]) -> None:
    assert run(env, "exclude", "0000:e5:00.0")[0] == 2
    for words in (("exclude", "0000:e5:00.0", "--reason", "r"), ("return", "GPU-5a"), ("forget", "GPU-5a")):
        code, text = run(env, *words)
        assert code == 1 and "not running" in text


def test_without_a_record_there_is_one_line(tmp_path: Path) -> None:
    code, text = run({"BANDOG_STATE": str(tmp_path), "BANDOG_RUN": str(tmp_path)}, "list")
    assert code == 1 and "there is no database yet" in text
