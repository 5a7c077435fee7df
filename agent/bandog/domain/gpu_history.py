"""What happened to a card over months: kept short by counting what repeats, told in one line.

Lines of one burst are one event; events of one kind within an hour share a line of the history that counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from .gpus import GpuEvent
from .model import Finding, Instant

BURST = timedelta(seconds=5)
SAME_LINE = timedelta(hours=1)
KEPT = 120
"""Lines of one card in memory; the store keeps more, for a year."""
COUNTED = frozenset({"xid", "ecc-corrected", "ecc-uncorrected", "remapped"})


def of_finding(finding: Finding, uuid: str) -> GpuEvent | None:
    """Return the event that an Xid's finding is for the card, None for any other finding, a drill or a forgery."""
    xid = finding.facts.get("xid")
    if finding.kind != "nvidia.xid" or not isinstance(xid, int) or not finding.raised:
        return None
    if finding.drill or finding.facts.get("glued"):
        return None
    text = str(finding.facts.get("text", ""))[:200]
    return GpuEvent(uuid=uuid, at=finding.at, what="xid", data={"xid": xid, "count": 1, "text": text})


def add(history: tuple[GpuEvent, ...], event: GpuEvent) -> tuple[tuple[GpuEvent, ...], GpuEvent | None]:
    """Return the history with `event`, and the line to store: a new one, or an older one that counts more.

    None where nothing is to store, because the event belongs to a burst that is counted already.
    """
    for place in range(len(history) - 1, -1, -1):
        line = history[place]
        if not _is_alike(line, event):
            continue
        if event.what == "xid" and abs(_after(line, event.at)) <= BURST:
            return history, None
        if not timedelta() <= event.at.since(line.at) <= SAME_LINE:
            break
        counted = replace(line, data={**line.data, **event.data, **_sum(line, event), "last": _stamp(event.at)})
        return (*history[:place], counted, *history[place + 1 :]), counted
    return (*history, event)[-KEPT:], event


def line(history: Iterable[GpuEvent]) -> str:
    """Return a card's faults in one line, like `3 Xid 63 since 2 Oct, 2 Xid 94 since 5 Nov`; "" for none."""
    counts: dict[str, int] = {}
    first: dict[str, Instant] = {}
    for event in history:
        name = _name(event)
        if name:
            counts[name] = counts.get(name, 0) + _count(event)
            first.setdefault(name, event.at)
    return ", ".join(f"{_counted(count, name)} since {_day(first[name])}" for name, count in counts.items())


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if name.startswith("Xid") or count == 1 else f"{count} {name}s"


def _name(event: GpuEvent) -> str:
    match event.what:
        case "xid":
            return f"Xid {event.data.get('xid')}"
        case "ecc-uncorrected":
            return "uncorrected ECC error"
        case "remapped":
            return "remapped row"
        case "excluded":
            return "exclusion"
    return ""


def _day(at: Instant) -> str:
    return f"{at.utc.day} {at.utc:%b %Y}"


def _is_alike(line: GpuEvent, event: GpuEvent) -> bool:
    same = line.uuid == event.uuid and line.what == event.what and line.data.get("xid") == event.data.get("xid")
    return same and event.what in COUNTED and line.at.boot_id == event.at.boot_id


def _after(line: GpuEvent, at: Instant) -> timedelta:
    """Return how far `at` lies behind the last event that the line counts."""
    last = line.data.get("last")
    seconds = last if isinstance(last, int | float) else line.at.boottime.total_seconds()
    return at.boottime - timedelta(seconds=seconds)


def _stamp(at: Instant) -> float:
    return at.boottime.total_seconds()


def _sum(line: GpuEvent, event: GpuEvent) -> dict[str, Any]:
    return {"count": _count(line) + _count(event)}


def _count(event: GpuEvent) -> int:
    count = event.data.get("count", 1)
    return count if isinstance(count, int) and count > 0 else 1
