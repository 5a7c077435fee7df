"""Kernel lines to a log detector, as the daemon would give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from ..domain.model import EMPTY, Finding, Record
from ..plugin import LogDetector
from .clock import FakeClock


def kernel_records(
    lines: str | Iterable[str],
    *,
    clock: FakeClock | None = None,
    live: bool = True,
    step: timedelta = timedelta(milliseconds=1),
    fields: Mapping[str, str] = EMPTY,
) -> list[Record]:
    """Return kernel-facility records of `lines`, `step` apart, the last one at the clock's moment."""
    texts = lines.splitlines() if isinstance(lines, str) else list(lines)
    now = (clock or FakeClock()).now()
    records = []
    for number, text in enumerate(texts, start=1):
        at = now.plus(-step * (len(texts) - number))
        records.append(
            Record(
                text=text,
                at=at,
                source="kmsg",
                live=live,
                level=4,
                seq=number,
                usec=at.boottime // timedelta(microseconds=1),
                line=number,
                fields=fields,
            )
        )
    return records


def feed(
    detector: LogDetector, lines: str | Iterable[str | Record], *, clock: FakeClock | None = None, live: bool = True
) -> list[Finding]:
    """Give `lines` to the detector as the daemon would, flush it at the end, return its findings.

    A string is split into physical lines; of an iterable each item is one record, so an inner
    newline stays. A detector that is not open gets only what holds one of its needles.
    """
    clock = clock or FakeClock()
    items = lines.splitlines() if isinstance(lines, str) else list(lines)
    made = iter(kernel_records([item for item in items if isinstance(item, str)], clock=clock, live=live))
    records = [next(made) if isinstance(item, str) else item for item in items]
    findings: list[Finding] = []
    for record in records:
        text = record.text.encode("utf-8", "surrogatepass")
        if detector.open or any(needle in text for needle in detector.needles):
            findings.extend(detector.feed(record))
    if detector.open:
        findings.extend(detector.flush(clock.now().plus(timedelta(minutes=1))))
    return findings
