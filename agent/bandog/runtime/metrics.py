"""Metrics as a Prometheus textfile, for node_exporter's textfile collector; there is no listener of ours.

The file is written whole and renamed into place, so that a scrape never sees half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile


def write(path: Path, status: Mapping[str, Any]) -> None:
    """Write the figures of `status` (what `bandog status --json` prints) to `path`; raises OSError."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float, **labels: str) -> None:
        known = gauges.get(name)
        if known is None:
            known = gauges[name] = Gauge(f"bandog_{name}", text, sorted(labels), registry=registry)
        (known.labels(**labels) if labels else known).set(value)

    gauges: dict[str, Gauge] = {}
    gauge("up", "1 while the agent runs", 1)
    gauge("enforcing", "1 if some action may act", float(status["mode"] != "observe"))
    gauge("breaker_tripped", "1 if the host's budget was used up", float(bool(status["breaker"])))
    gauge("incidents_open", "Incidents that have not ended", status["incidents_open"])
    gauge("uptime_seconds", "Seconds since the agent started", status["uptime"])
    gauge("loop_lag_seconds", "How late the last tick was", status["lag"])
    gauge("store_stuck_seconds", "Seconds that the oldest commit has waited", status["store"]["stuck"])
    gauge("would_actions", "Actions that observe mode did not take", status["would"])
    for source in status["sources"]:
        gauge("source_up", "1 if the source is watched", float(source["state"] == "watched"), source=source["name"])
        for key, value in source.get("counts", {}).items():
            gauge("source_records", "Records by what became of them", value, source=source["name"], what=key)
    for plugin in status["plugins"]:
        gauge("plugin_up", "1 if the plugin is loaded", float(plugin["state"] == "loaded"), plugin=plugin["name"])
    for use in status["budgets"]:
        gauge("budget_used", "Charges that count now", use["used"], key=use["key"])
        gauge("budget_limit", "Charges allowed", use["limit"], key=use["key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_to_textfile(str(path), registry)
