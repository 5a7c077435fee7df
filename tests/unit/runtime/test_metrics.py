"""The metrics file has what an alert needs, and is replaced whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bandog.runtime.metrics import write


def status(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "mode": "observe",
        "breaker": "",
        "incidents_open": 2,
        "uptime": 5.0,
        "lag": 0.001,
        "store": {"stuck": 0.0},
        "would": 3,
        "sources": [{"name": "kmsg", "state": "watched", "counts": {"read": 7, "lost": 0}}],
        "plugins": [{"name": "xid", "state": "loaded"}, {"name": "bad", "state": "broken"}],
        "budgets": [{"key": "host", "used": 1, "limit": 20.0}],
    }
    return base | changes


def test_every_figure_is_written_with_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "node" / "bandog.prom"
    write(path, status())
    lines = path.read_text().splitlines()
    for line in (
        "bandog_up 1.0",
        "bandog_enforcing 0.0",
        "bandog_incidents_open 2.0",
        'bandog_source_up{source="kmsg"} 1.0',
        'bandog_source_records{source="kmsg",what="read"} 7.0',
        'bandog_plugin_up{plugin="bad"} 0.0',
        'bandog_budget_used{key="host"} 1.0',
        "bandog_would_actions 3.0",
    ):
        assert line in lines, path.read_text()


def test_a_second_writing_replaces_the_first_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "bandog.prom"
    write(path, status())
    write(path, status(breaker="20 acts in 24h", mode=["restart"]))
    text = path.read_text()
    assert "bandog_breaker_tripped 1.0" in text
    assert "bandog_enforcing 1.0" in text
    assert [one.name for one in tmp_path.iterdir()] == ["bandog.prom"]
