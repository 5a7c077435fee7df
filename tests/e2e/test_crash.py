"""Killed at any moment: no disruptive call happens twice, no act without its charge, every request ends."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bandog.store.reader import Reader

NURSERY = Path(__file__).with_name("crash_nursery.py")


@pytest.mark.parametrize(("kind", "rounds"), [("first", 8), ("after", 8), ("random", 40)])
def test_killed_in_the_middle_nothing_is_done_twice_and_budgets_stay_whole(
    tmp_path: Path, kind: str, rounds: int
) -> None:
    command = [sys.executable, str(NURSERY), str(tmp_path), kind, str(rounds), "20261130"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    killed = int(done.stdout)
    assert killed == rounds if kind != "random" else killed > rounds // 5

    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    runs = Counter(words[1] for words in notes if words[0] == "run")
    assert runs, "some acts did happen"
    assert max(runs.values()) == 1, f"a request was run twice: {runs}"

    with Reader(tmp_path / "bandog.db") as reader:
        charged = {one.request for one in reader.charges()}
        requests = [one for number in range(1, rounds + 1) for one in reader.requests(number)]
    assert set(runs) <= charged, "an act without its charge"
    assert len(charged) <= rounds
    assert all(one.state.ended for one in requests), "a request was left in the middle"
    if kind != "random":
        assert len(requests) == rounds
        # A proof may be looked at again by the next agent; that changes nothing.
        proofs = {(words[1], words[2]) for words in notes if words[0] == "proof"}
        assert proofs == {(f"{number}.1", "interrupted") for number in range(1, rounds + 1)}
