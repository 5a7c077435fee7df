"""The refill of gaps: from the reader's gap to late records and a finding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from bandog.domain.model import EMPTY, Record, Severity
from bandog.sources.gap import Gap, Missing
from bandog.sources.journal import JournalUnavailable, KernelEntry
from bandog.sources.kmsg import KmsgSource
from bandog.sources.refill import Refill, Refilled
from bandog.testing import BOOT_ID, FakeClock, settle

HOUR_USEC = 3600 * 1_000_000


def an_entry(text: str, usec: int = HOUR_USEC - 1_000_000) -> KernelEntry:
    return KernelEntry(
        text=text, kernel=True, usec=usec, monotonic=usec, realtime=usec, boot_id=BOOT_ID, level=4, fields=EMPTY
    )


class Lost:
    """A kernel log file with a hole, its reader, and a journal that answers as scripted."""

    def __init__(self, folder: Path, *answers: Sequence[Missing] | JournalUnavailable) -> None:
        self.clock = FakeClock()
        self.asked: list[tuple[tuple[Gap, ...], tuple[bytes, ...] | None]] = []
        self.answers = list(answers)
        self.records: list[Record] = []
        self.ended: list[Refilled] = []
        self.file = folder / "kmsg"
        self.file.write_text(f"6,0,{HOUR_USEC - 9},-;before\n6,11,{HOUR_USEC},-;NVRM: after\n")
        self.source = KmsgSource(self.file, self.clock, needles=[b"NVRM: "], on_gap=lambda gap: self.refill.add(gap))
        self.refill = Refill(
            self.source, self.clock, lookup=self.lookup, feed=self.records.append, ended=self.ended.append
        )

    async def lookup(
        self, gaps: Sequence[Gap], shift: timedelta, needles: tuple[bytes, ...] | None
    ) -> Sequence[Missing]:
        self.asked.append((tuple(gaps), needles))
        answer = self.answers.pop(0)
        if isinstance(answer, JournalUnavailable):
            raise answer
        return answer


def run(lost: Lost, body: Callable[[Lost], Awaitable[None]]) -> None:
    async def main() -> None:
        lost.source.start(lost.records.append)
        await lost.source.drained.wait()
        await settle()
        await body(lost)
        await lost.refill.stop()
        lost.source.stop()

    asyncio.run(main())


def found(*texts: str, of: int = 10, whole: bool = True, numbers: tuple[int, ...] = ()) -> list[Missing]:
    wanted = tuple(an_entry(text) for text in texts)
    return [Missing(found=of, wanted=wanted, numbers=numbers, whole=whole)]


def test_late_records_keep_their_own_time_and_number(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        assert [record.text for record in lost.records] == ["NVRM: after", "NVRM: late"]
        late = lost.records[1]
        assert (late.seq, late.source, late.kernel) == (5, "kmsg", True)
        assert late.at.boottime == timedelta(hours=1) - timedelta(seconds=1)
        assert not late.live, "without a bookmark it was there before our start"
        (ended,) = lost.ended
        assert (ended.recovered, ended.lost, ended.fed, ended.why) == (10, 0, 1, "")
        finding = ended.to_finding(lost.clock.now())
        assert (finding.kind, finding.subject, finding.severity) == ("agent.kmsg-lost", "agent", Severity.INFO)
        assert dict(finding.facts) == {"lost": 0, "recovered": 10}

    run(Lost(tmp_path, found("NVRM: late", numbers=(5,))), body)


def test_the_bookmark_waits_for_the_refill(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        assert '"seq":0' in (lost.source.position() or "")
        await lost.clock.run(timedelta(seconds=20))
        assert '"seq":11' in (lost.source.position() or "")

    run(Lost(tmp_path, *[found(of=3, whole=False)] * 5), body)


def test_a_journal_that_lags_behind_is_asked_again(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        assert (len(lost.asked), lost.ended) == (1, [])
        await lost.clock.run(timedelta(seconds=1))
        assert len(lost.asked) == 2
        (ended,) = lost.ended
        assert (ended.recovered, ended.why) == (10, "")

    run(Lost(tmp_path, found(of=4, whole=False), found("NVRM: late")), body)


def test_what_the_journal_never_gets_is_lost(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        await lost.clock.run(timedelta(seconds=20))
        (ended,) = lost.ended
        assert (ended.recovered, ended.lost) == (4, 6)
        assert ended.to_finding(lost.clock.now()).severity is Severity.WARNING
        assert [record.text for record in lost.records] == ["NVRM: after", "NVRM: late"]
        assert lost.records[1].seq is None

    run(Lost(tmp_path, *[found("NVRM: late", of=4, whole=False)] * 5), body)


def test_without_a_journal_all_is_lost_and_the_reason_is_kept(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        (ended,) = lost.ended
        assert (ended.recovered, ended.lost, ended.why) == (0, 10, "no journal here")
        assert lost.source.state.lost == 10

    run(Lost(tmp_path, JournalUnavailable("no journal here")), body)


def test_gaps_that_come_while_one_is_refilled_are_asked_for_together(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        with lost.file.open("a") as log:
            log.write(f"6,20,{HOUR_USEC},-;a\n6,30,{HOUR_USEC},-;b\n")
        async with asyncio.timeout(5):
            while lost.source.state.lost < 27:  # noqa: ASYNC110  the source has no event for it
                await asyncio.sleep(0.001)
        await lost.clock.run(timedelta(seconds=2))
        assert [len(gaps) for gaps, _ in lost.asked] == [1, 1, 2]
        assert [(one.gap.first, one.lost) for one in lost.ended] == [(1, 0), (12, 0), (21, 0)]

    lost = Lost(tmp_path, found(of=1, whole=False), found(of=10), found(of=8) + found(of=9))
    run(lost, body)


def test_what_an_open_detector_wants_is_everything(tmp_path: Path) -> None:
    async def body(lost: Lost) -> None:
        assert lost.asked[0][1] == (b"NVRM: ",)
        lost.source._is_open = lambda: True
        assert lost.source.wanted_needles is None

    run(Lost(tmp_path, found()), body)
