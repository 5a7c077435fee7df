"""Tasks that hang in the kernel: khungtaskd's reports, and our own look at what it never reports.

The log detector makes one finding of each block that khungtaskd prints. The scan beside it
(`_hung_scan`) sees killable waits, which the kernel leaves out, and says when a task moves again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import ClassVar

from bandog import Facts, Finding, Instant, LogDetector, Probe, Record, Severity, hookimpl, subjects

from . import _hung_block as block
from . import _hung_facts as facts
from ._hung_scan import HungTaskScan

GAP = timedelta(seconds=2)
"""A block whose lines stop for this long has ended (one takes about 130 ms)."""
STILL_COMING = timedelta(milliseconds=500)
"""A block with a line as young as this is not cut by the clock."""
MAX_BLOCKS = 64
MAX_RECORDS = 2000
"""Records after a headline, foreign ones included, past which a block has ended whatever the clock says."""
MAX_EPISODES = 256


class HungTask(LogDetector):
    """Makes one `task.hung` of each khungtaskd block, closed by its end, the next headline or a gap."""

    name = "hung-task"
    emits: ClassVar[Mapping[str, Facts]] = {"task.hung": facts.HUNG, "agent.log-blind": facts.BLIND}
    needles = (block.PREFIX.encode(), block.SUPPRESSED.encode())

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        # khungtaskd is one thread, so each source has at most one block under way.
        self._blocks: OrderedDict[str, block.Block] = OrderedDict()
        self._episodes: OrderedDict[int, tuple[block.Headline, Instant, int]] = OrderedDict()

    def feed(self, record: Record) -> Iterable[Finding]:
        """Take one record; returns the findings of the blocks that it ends."""
        if not record.kernel:
            return ()
        found = list(self._feed(record))
        self.open = bool(self._blocks)
        return found

    def _feed(self, record: Record) -> Iterable[Finding]:
        current = self._blocks.get(record.source)
        if current is not None and _apart(current.last.at, record.at) > GAP:
            yield self._close(record.source)
            current = None
        head = block.headline(record.text) if record.text.startswith(block.PREFIX) else None
        if head is not None:
            yield from self._begin(head, record)
            return
        if current is not None:
            ours = current.take(record)
            if not ours or current.over or current.seen >= MAX_RECORDS:
                yield self._close(record.source)
        if record.text.startswith(block.SUPPRESSED):
            yield _blind(record)
        elif (forged := block.headline_within(record.text)) is not None:
            yield _glued(forged, record)

    def flush(self, now: Instant) -> Iterable[Finding]:
        """Close the blocks whose lines have stopped coming; all of them when `now` is far past them."""
        done = []
        for source, one in list(self._blocks.items()):
            age = now.since(one.last.at)
            coming = one.touched if age < timedelta(0) else timedelta(0) < age < STILL_COMING
            one.touched = False
            if not coming:
                done.append(self._close(source))
        self.open = bool(self._blocks)
        return done

    def _begin(self, head: block.Headline, record: Record) -> Iterable[Finding]:
        if record.source in self._blocks:
            yield self._close(record.source)
        elif len(self._blocks) >= MAX_BLOCKS:
            yield self._close(next(iter(self._blocks)))
        self._blocks[record.source] = block.Block(head=head, first=record, last=record)

    def _close(self, source: str) -> Finding:
        one = self._blocks.pop(source)
        known = one.facts()
        known["episode"] = self._episode(one)
        return Finding.of(
            one.first,
            kind="task.hung",
            subject=subjects.task(one.head.comm),
            severity=facts.severity(str(known["class"]), one.head.seconds),
            facts=known,
            burst=str(one.head.pid),
            aspect=str(one.head.pid),
            window=facts.EPISODE,
        )

    def _episode(self, one: block.Block) -> int:
        """Return which wait of this task it is, from 1: it goes on if it began before the last report."""
        head, at = one.head, one.first.at
        old = self._episodes.pop(head.pid, None)
        number = 1
        if old is not None:
            before, then, number = old
            goes_on = before.comm == head.comm and head.seconds > before.seconds
            began = at.boottime - timedelta(seconds=min(head.seconds, 10**9))
            if not goes_on or at.boot_id != then.boot_id or began > then.boottime:
                number = number + 1 if before.comm == head.comm else 1
        self._episodes[head.pid] = (head, at, number)
        if len(self._episodes) > MAX_EPISODES:
            self._episodes.popitem(last=False)
        return number


def _blind(record: Record) -> Finding:
    return Finding.of(
        record,
        kind="agent.log-blind",
        subject=subjects.AGENT,
        severity=Severity.WARNING,
        facts={"what": facts.REPORTS, "text": record.text[:200]},
        burst="hung-task",
        aspect="hung-task",
    )


def _glued(head: block.Headline, record: Record) -> Finding:
    return Finding.of(
        record,
        kind="task.hung",
        subject=subjects.task(head.comm),
        severity=Severity.WARNING,
        facts={**head.facts(), "glued": True, "text": record.text[:200]},
        burst=str(head.pid),
        window=facts.EPISODE,
    )


def _apart(one: Instant, other: Instant) -> timedelta:
    if one.boot_id != other.boot_id:
        return timedelta.max
    return abs(other.boottime - one.boottime)


@hookimpl
def register_detectors(register: Callable[[type[LogDetector] | type[Probe]], None]) -> None:
    """Register the log detector and the scan."""
    register(HungTask)
    register(HungTaskScan)
