"""The reader of the kernel's log, over a packet socket, a FIFO, a file and the real device."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandog.domain.model import Record
from bandog.host.clock import SystemClock
from bandog.host.paths import Paths
from bandog.sources.bookmark import Bookmark, Neighbour, text_digest
from bandog.sources.gap import Gap
from bandog.sources.kmsg import KmsgSource
from bandog.testing import BOOT_ID, FakeClock

XID = "NVRM: Xid (PCI:0000:e5:00): 94, pid=31877, name=python3, Contained: SM (0x1). RST: No, D-RST: No"
HOUR_USEC = 3600 * 1_000_000


class FakeLog:
    """A kernel log over a packet socket: each packet is one record, as each read of the device is."""

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._out, self._in):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self._out.setblocking(True)
        self.errors: list[int] = []
        self.opened = 0
        self.seq = 0

    def close(self) -> None:
        self._out.close()
        self._in.close()

    def open(self, path: Path) -> int:
        self.opened += 1
        number = os.dup(self._in.fileno())
        os.set_blocking(number, False)
        return number

    def read(self, number: int, size: int) -> bytes:
        """Read as the device does; errors queued by the test come first."""
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return os.read(number, size)

    def raw(self, data: bytes) -> None:
        self._out.send(data)

    def say(self, text: str, *, prio: int = 4, usec: int = HOUR_USEC, fields: str = "") -> int:
        self.raw(f"{prio},{self.seq},{usec},-;{text}\n{fields}".encode())
        self.seq += 1
        return self.seq - 1


@contextlib.contextmanager
def a_log() -> Iterator[FakeLog]:
    log = FakeLog()
    try:
        yield log
    finally:
        log.close()


class Reading:
    """A started source with what it delivered."""

    def __init__(self, log: FakeLog, *, clock: FakeClock | None = None, mark: Bookmark | None = None) -> None:
        self.log = log
        self.clock = clock or FakeClock()
        self.records: list[Record] = []
        self.gaps: list[Gap] = []
        self.open = False
        self.opens_at = ""
        self.source = KmsgSource(
            Path("/dev/kmsg"),
            self.clock,
            needles=[b"NVRM: "],
            is_open=lambda: self.open,
            mark=mark,
            on_gap=self.gaps.append,
            opener=log.open,
            read=log.read,
        )
        self.source.start(self.feed)

    def feed(self, record: Record) -> None:
        self.records.append(record)
        if self.opens_at and self.opens_at in record.text:
            self.open = True

    @property
    def texts(self) -> list[str]:
        return [record.text for record in self.records]

    @property
    def lives(self) -> list[bool]:
        return [record.live for record in self.records]

    def mark(self) -> Bookmark:
        position = self.source.position()
        assert position is not None
        mark = Bookmark.parse(position, boot_id=self.clock.now().boot_id)
        assert mark is not None
        return mark


async def until(condition: Callable[[], bool]) -> None:
    """Wait on the real loop until the condition holds; fails after 5 s."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  a condition of the code under test has no event
            await asyncio.sleep(0.001)


def run(body: Callable[[FakeLog], Awaitable[None]]) -> None:
    async def main() -> None:
        with a_log() as log:
            await body(log)

    asyncio.run(main())


def test_delivers_what_holds_a_needle_with_its_time_and_fields() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        await reading.source.drained.wait()
        log.say("EXT4-fs (vda): mounted")
        log.say(XID, prio=3, usec=HOUR_USEC - 500, fields=" SUBSYSTEM=pci\n DEVICE=+pci:0000:e5:00.0\n")
        await until(lambda: bool(reading.records))
        (record,) = reading.records
        assert record.text == XID
        assert (record.kernel, record.live, record.level, record.seq) == (True, True, 3, 1)
        assert record.usec == HOUR_USEC - 500
        assert record.at.boottime == timedelta(hours=1) - timedelta(microseconds=500)
        assert dict(record.fields) == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:e5:00.0"}
        state = reading.source.state
        assert (state.read, state.wanted, state.last_seq, state.problem) == (2, 1, 1, None)
        reading.source.stop()

    run(body)


def test_delivers_every_kernel_record_while_a_detector_is_open() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        reading.open = True
        log.say("      Not tainted 6.1.0")
        await until(lambda: reading.texts == ["      Not tainted 6.1.0"])
        reading.source.stop()

    run(body)


def test_drops_and_counts_what_a_process_wrote_even_while_open() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        reading.open = True
        for prio in (8, 11, 12, 30, 2051):
            log.say(XID, prio=prio)
        log.say("the kernel's own", prio=0)
        await until(lambda: bool(reading.records))
        assert reading.texts == ["the kernel's own"]
        assert reading.source.state.user_dropped == 5
        reading.source.stop()

    run(body)


def test_without_a_bookmark_what_was_there_at_the_start_is_history() -> None:
    async def body(log: FakeLog) -> None:
        log.say(XID, usec=HOUR_USEC - 1_000_000)
        reading = Reading(log)
        await reading.source.drained.wait()
        log.say(XID)
        await until(lambda: len(reading.records) == 2)
        assert reading.lives == [False, True]
        assert reading.gaps == []
        reading.source.stop()

    run(body)


def test_without_a_bookmark_a_record_stamped_after_the_start_is_live_though_the_log_never_ran_empty() -> None:
    async def body(log: FakeLog) -> None:
        clock = FakeClock()
        log.say(XID, usec=HOUR_USEC - 1)
        log.say(XID, usec=HOUR_USEC + 10_000_000)
        reading = Reading(log, clock=clock)
        clock.advance(timedelta(seconds=20))
        await until(lambda: len(reading.records) == 2)
        assert reading.lives == [False, True]
        reading.source.stop()

    run(body)


def test_an_xid_that_came_while_the_agent_was_stopped_is_delivered_live_once() -> None:
    async def body(log: FakeLog) -> None:
        clock = FakeClock()
        first = Reading(log, clock=clock)
        log.say(XID.replace("94", "63"))
        await until(lambda: len(first.records) == 1)
        mark = first.mark()
        first.source.stop()
        stopped_at = log.seq
        log.seq = 0  # the device is read from its oldest record again
        log.say(XID.replace("94", "63"))
        assert log.seq == stopped_at
        log.say(XID)
        clock.advance(timedelta(seconds=10))
        second = Reading(log, clock=clock, mark=mark)
        await until(lambda: len(second.records) == 1)
        await second.source.drained.wait()
        assert second.texts == [XID]
        assert second.lives == [True]
        second.source.stop()

    run(body)


def test_a_bookmark_that_is_ahead_of_the_log_does_not_deafen_the_reader() -> None:
    async def body(log: FakeLog) -> None:
        mark = Bookmark(boot_id=BOOT_ID, last=Neighbour(seq=900, usec=1, digest="x"), upto=900)
        log.say(XID)
        reading = Reading(log, mark=mark)
        await reading.source.drained.wait()
        log.say(XID)
        await until(lambda: len(reading.records) == 1)
        assert reading.lives == [True]
        assert reading.mark().last.seq == 1
        reading.source.stop()

    run(body)


def test_a_gap_is_counted_and_told_with_its_neighbours() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        log.say("before", usec=100)
        log.seq = 51
        log.errors.append(errno.EPIPE)
        log.say("after", usec=200)
        await until(lambda: reading.source.state.read == 2)
        (gap,) = reading.gaps
        assert (gap.first, gap.last, gap.count) == (1, 50, 50)
        assert gap.before == Neighbour(seq=0, usec=100, digest=text_digest("before"))
        assert gap.after == Neighbour(seq=51, usec=200, digest=text_digest("after"))
        assert reading.source.state.lost == 50
        assert reading.source.state.overruns == 1
        assert reading.mark().last.seq == 0, "the bookmark waits before a gap that is being refilled"
        reading.source.close_gap(gap)
        assert reading.mark().last.seq == 51
        reading.source.stop()

    run(body)


def test_what_was_overwritten_while_the_agent_was_stopped_is_a_gap() -> None:
    async def body(log: FakeLog) -> None:
        last = Neighbour(seq=10, usec=100, digest=text_digest("last"))
        log.seq = 500
        log.say("oldest that is left")
        reading = Reading(log, mark=Bookmark(boot_id=BOOT_ID, last=last, upto=10))
        await until(lambda: reading.source.state.read == 1)
        (gap,) = reading.gaps
        assert (gap.first, gap.last, gap.before) == (11, 499, last)
        assert gap.live, "it is past the bookmark"
        reading.source.stop()

    run(body)


def test_malformed_records_are_counted_and_the_reader_goes_on() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        log.raw(b"no header")
        log.raw(b"3,x,1,-;NVRM: no number")
        log.errors.append(errno.EINVAL)
        log.say(XID)
        await until(lambda: len(reading.records) == 1)
        assert reading.source.state.malformed == 3
        reading.source.stop()

    run(body)


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EBADF, errno.EIO])
def test_after_an_error_the_log_is_opened_again_and_nothing_comes_twice(code: int) -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        log.say(XID)
        await until(lambda: len(reading.records) == 1)
        log.errors.append(code)
        log.seq = 0
        log.say(XID)
        log.say("NVRM: new")
        await until(lambda: len(reading.records) == 2)
        assert reading.texts == [XID, "NVRM: new"]
        assert log.opened == 2
        assert reading.source.state.reopened == 1
        assert reading.source.state.problem is None
        reading.source.stop()

    run(body)


def test_endless_invalid_reads_open_the_log_again() -> None:
    async def body(log: FakeLog) -> None:
        log.errors = [errno.EINVAL] * 65
        reading = Reading(log)
        log.say(XID)
        await until(lambda: len(reading.records) == 1)
        assert log.opened == 2
        reading.source.stop()

    run(body)


def test_a_log_that_cannot_be_opened_is_a_named_problem_and_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "kmsg"
        records: list[Record] = []
        source = KmsgSource(path, FakeClock(), needles=[b"NVRM: "])
        source.start(records.append)
        assert source.state.problem == f"{path}: No such file or directory (ENOENT)"
        path.write_text(f"3,0,1,-;{XID}\n")
        await until(lambda: len(records) == 1)
        assert source.state.problem is None
        source.stop()

    asyncio.run(main())


def test_the_bookmark_stays_before_the_oldest_open_block() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        reading.opens_at = "INFO"
        log.say("something else")
        log.say("NVRM: INFO: task vllm:7 blocked")
        log.say("      Not tainted")
        await until(lambda: len(reading.records) == 2)
        assert reading.mark().last.seq == 0
        reading.open = False
        assert reading.mark().last.seq == 2
        reading.source.stop()

    run(body)


def test_a_finding_behind_the_bookmark_is_taken_in_once_over_any_number_of_restarts() -> None:
    async def body(log: FakeLog) -> None:
        lines = ["first", "NVRM: INFO: task vllm:7 blocked", XID]
        mark = None
        taken = []
        for _ in range(3):
            log.seq = 0
            for line in lines:
                log.say(line)
            reading = Reading(log, mark=mark)
            reading.opens_at = "INFO"
            await until(lambda reading=reading: XID in reading.texts)  # type: ignore[misc]  # bound now
            xid = next(record for record in reading.records if record.text == XID)
            taken.append(reading.source.take(xid.identity))
            mark = reading.mark()
            assert mark.last.seq == 0
            reading.source.stop()
        assert taken == [True, False, False]

    run(body)


def test_too_many_findings_behind_an_open_block_let_go_of_the_block() -> None:
    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        reading.opens_at = "INFO"
        log.say("first")
        log.say("NVRM: INFO")
        await until(lambda: len(reading.records) == 1)
        for number in range(300):
            assert reading.source.take(f"record {number}")
        mark = reading.mark()
        assert mark.last.seq == 1
        assert mark.done == ()
        reading.source.stop()

    run(body)


def test_the_drift_of_the_kernel_clock_is_measured_and_kept_in_the_bookmark() -> None:
    """After months the stamp may be minutes off; a fresh record must still be fresh."""

    async def body(log: FakeLog) -> None:
        clock = FakeClock(boottime=timedelta(days=300))
        late = 86400 * 300 * 1_000_000 - 600 * 1_000_000
        reading = Reading(log, clock=clock)
        await reading.source.drained.wait()
        log.say(XID, usec=late)
        await until(lambda: len(reading.records) == 1)
        assert reading.records[0].at == clock.now()
        assert reading.mark().shift == 600 * 1_000_000
        reading.source.stop()
        log.seq = 1
        log.say(XID, usec=late)
        again = Reading(log, clock=clock, mark=reading.mark())
        await until(lambda: len(again.records) == 1)
        assert again.records[0].at == clock.now()
        again.source.stop()

    run(body)


def test_a_record_that_waited_while_we_stood_still_is_as_old_as_it_says() -> None:
    """Ten minutes of SIGSTOP or a frozen cgroup are no drift of a clock that has run for an hour."""

    async def body(log: FakeLog) -> None:
        reading = Reading(log)
        await reading.source.drained.wait()
        log.say(XID, usec=HOUR_USEC - 600_000_000)
        await until(lambda: len(reading.records) == 1)
        assert reading.clock.now().since(reading.records[0].at) == timedelta(minutes=10)
        assert reading.source.shift == timedelta()
        reading.source.stop()

    run(body)


def test_no_record_lies_in_the_future() -> None:
    async def body(log: FakeLog) -> None:
        log.say(XID, usec=HOUR_USEC + 30_000_000)
        reading = Reading(log)
        await until(lambda: len(reading.records) == 1)
        assert reading.records[0].at == reading.clock.now()
        reading.source.stop()

    run(body)


def test_a_flood_leaves_the_loop_its_turns() -> None:
    async def main() -> None:
        lines = b"".join(b"6,%d,%d,-;EXT4-fs (vda): error count since last fsck\n" % (n, n) for n in range(50_000))
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn) if not source.drained.is_set() else None

        file = os.memfd_create("flood")
        os.write(file, lines)
        os.lseek(file, 0, os.SEEK_SET)
        source = KmsgSource(Path("flood"), FakeClock(), needles=[b"NVRM: "], opener=lambda path: os.dup(file))
        source.start(lambda record: None)
        turn()
        await until(source.drained.is_set)
        assert source.state.read == 50_000
        assert turns > 1
        source.stop()
        os.close(file)

    asyncio.run(main())


def test_reads_records_with_fields_from_a_fifo_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "kmsg"
        os.mkfifo(path)
        records: list[Record] = []
        source = KmsgSource(path, FakeClock(), needles=[b"NVRM: "])
        source.start(records.append)
        with path.open("wb", buffering=0) as out:
            out.write(f"3,0,1,-;{XID}\n SUBSYSTEM=pci\n3,1,2,-;NVRM: ".encode())
            out.write(b"second\n")
        await until(lambda: len(records) == 2)
        assert [record.text for record in records] == [XID, "NVRM: second"]
        assert dict(records[0].fields) == {"SUBSYSTEM": "pci"}
        source.stop()

    asyncio.run(main())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.lists(st.sampled_from([32, 22, 5, 19]), max_size=3))
def test_arbitrary_bytes_and_errors_never_stop_the_reader(packets: list[bytes], errors: list[int]) -> None:
    async def body(log: FakeLog) -> None:
        log.errors = list(errors)
        reading = Reading(log)
        reading.source._device._backoff = 0.0
        for packet in packets:
            log.raw(packet)
        log.seq = 2**63
        log.say(XID)
        await until(lambda: XID in reading.texts)
        reading.source.position()
        reading.source.stop()

    run(body)


def test_the_real_device_yields_records_and_a_line_from_a_process_does_not_count() -> None:
    async def main() -> None:
        needle = f"bandog test {os.getpid()} {os.urandom(4).hex()}"
        records: list[Record] = []
        clock = SystemClock(Paths())
        source = KmsgSource(Path("/dev/kmsg"), clock, needles=[needle.encode()], is_open=lambda: True)
        source.start(records.append)
        await until(source.drained.is_set)
        dropped = source.state.user_dropped
        say(f"<0>{needle}\n")
        await until(lambda: source.state.user_dropped > dropped)
        assert not any(needle in record.text for record in records)
        assert all(not record.live for record in records)
        assert source.state.malformed == 0
        source.stop()

    def say(line: str) -> None:
        with Path("/dev/kmsg").open("wb", buffering=0) as out:
            out.write(line.encode())

    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg is not readable and writable here")
    try:
        os.close(os.open("/dev/kmsg", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be opened here: {error.strerror}")
    asyncio.run(main())
