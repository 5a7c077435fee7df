"""Kernel lines out of text logs: every form, whose lines they are, their numbers, their time, their bounds."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.model import Instant, Record
from bandog.sources.text import LONGEST_LINE, Search, TextReader
from bandog.sources.text_file import LogUnreadable, open_log
from bandog.sources.text_time import told_wall

TODAY = datetime(2026, 11, 30, 12, tzinfo=UTC)
NEEDLES = (b"NVRM: ", b"INFO: task ")
TEXT = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


class Log:
    """What a reader gave. It is open from a record with `opener` to one with `closer`."""

    def __init__(self, opener: str = "\0", closer: str = "\0", zone: timezone = UTC, sample: int = 64 << 10) -> None:
        self.records: list[Record] = []
        self.flushes: list[Instant] = []
        self.open = False
        self._opener, self._closer = opener, closer
        self.reader = TextReader(
            needles=NEEDLES,
            feed=self._feed,
            flush=self.flushes.append,
            is_open=lambda: self.open,
            today=TODAY,
            zone=zone,
            sample=sample,
        )

    def _feed(self, record: Record) -> None:
        self.records.append(record)
        self.open = (self.open or self._opener in record.text) and self._closer not in record.text

    def read(self, *logs: str | bytes, step: int = 1 << 20) -> list[Record]:
        """Read logs one after another, `step` bytes at a time."""
        for log in logs:
            data = log if isinstance(log, bytes) else log.encode("utf-8", "surrogateescape")
            self.reader.read(_Slow(data, step))
        self.reader.close()
        return self.records


class _Slow(io.BytesIO):
    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(self._step)


class _Live:
    """A pipe that stays open: None is a second in which nothing came."""

    def __init__(self, chunks: Iterator[bytes | None]) -> None:
        self._chunks = chunks

    def read1(self, size: int) -> bytes | None:
        return next(self._chunks, b"")


def utc(text: str) -> datetime:
    """The moment `text` in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


UPTIME = timedelta(seconds=130, microseconds=456250)
FORMS: dict[str, tuple[str, timedelta | None, datetime | None]] = {
    "bare": ("", None, None),
    "dmesg": ("[  130.456250] ", UPTIME, None),
    "dmesg with caller": ("[  130.456250] [ T1946] ", UPTIME, None),
    "dmesg with caller on a CPU": ("[  130.456250][    C4] ", UPTIME, None),
    "dmesg -T": ("[Sun Feb 22 16:24:18 2026] ", None, utc("2026-02-22T16:24:18")),
    "dmesg -T, one-digit day": ("[Sun Feb  1 16:24:18 2026] ", None, utc("2026-02-01T16:24:18")),
    "dmesg -T elsewhere": ("[So Mär  1 16:24:18 2026] ", None, None),
    "dmesg -d": ("[  130.456250 <    0.000012>] ", UPTIME, None),
    "dmesg -T -d": ("[Sun Feb 22 16:24:18 2026 <    0.000012>] ", None, utc("2026-02-22T16:24:18")),
    "dmesg -t -d": ("[<    0.000012>] ", None, None),
    "dmesg -e": ("[  +0.000012] ", None, None),
    "dmesg -e, first": ("[Feb22 16:24] ", None, None),
    "dmesg -r": ("<4>[  130.456250] ", UPTIME, None),
    "dmesg -x": ("kern  :warn  : [  130.456250] ", UPTIME, None),
    "dmesg -x -T": ("kern  :warn  : [Sun Feb 22 16:24:18 2026] ", None, utc("2026-02-22T16:24:18")),
    "dmesg --time-format=iso": ("2026-02-22T16:24:18,482119+00:00 ", None, utc("2026-02-22T16:24:18.482119")),
    "dmesg --color=always": ("\x1b[32m[  130.456250] \x1b[0m\x1b[33m", UPTIME, None),
    "syslog": ("Mar 14 02:11:09 gpu-a17 kernel: ", None, utc("2026-03-14T02:11:09")),
    "syslog, one-digit day": ("Mar  4 02:11:09 gpu-a17 kernel: ", None, utc("2026-03-04T02:11:09")),
    "syslog of last year": ("Dec 24 02:11:09 gpu-a17 kernel: ", None, utc("2025-12-24T02:11:09")),
    "syslog with the kernel's stamp": ("Mar 14 02:11:09 h kernel: [  130.456250] ", UPTIME, utc("2026-03-14T02:11:09")),
    "syslog, stamp, caller": ("Mar 14 02:11:09 h kernel: [  130.456250] [ T1] ", UPTIME, utc("2026-03-14T02:11:09")),
    "syslog, ISO": ("2026-02-03T11:40:55.410233+01:00 node kernel: ", None, utc("2026-02-03T10:40:55.410233")),
    "syslog, ISO, Z": ("2026-02-03T11:40:55Z node kernel: ", None, utc("2026-02-03T11:40:55")),
    "syslog, RFC 5424": ("<4>1 2026-02-03T11:40:55.41+00:00 node kernel - - - ", None, utc("2026-02-03T11:40:55.41")),
    "syslog with priority": ("<4>Mar 14 02:11:09 gpu-a17 kernel: ", None, utc("2026-03-14T02:11:09")),
    "BusyBox syslogd": ("Mar 14 02:11:09 gpu-a17 kern.warn kernel: ", None, utc("2026-03-14T02:11:09")),
    "a host called kernel": ("Mar 14 02:11:09 kernel kernel: ", None, utc("2026-03-14T02:11:09")),
    "a host by address": ("Mar 14 02:11:09 fd00::17 kernel: ", None, utc("2026-03-14T02:11:09")),
    "journalctl": ("Mar 14 02:11:09 gpu-a17 kernel: ", None, utc("2026-03-14T02:11:09")),
    "journalctl --no-hostname": ("Mar 14 02:11:09 kernel: ", None, utc("2026-03-14T02:11:09")),
    "journalctl -o short-precise": ("Mar 14 02:11:09.410233 h kernel: ", None, utc("2026-03-14T02:11:09.410233")),
    "journalctl -o short-full": ("Sat 2026-03-14 02:11:09 UTC h kernel: ", None, utc("2026-03-14T02:11:09")),
    "journalctl -o short-iso": ("2026-03-14T02:11:09+0000 h kernel: ", None, utc("2026-03-14T02:11:09")),
    "journalctl -o short-iso-precise": ("2026-03-14T02:11:09.41+00:00 h kernel: ", None, utc("2026-03-14T02:11:09.41")),
    "journalctl -o short-unix": ("1773454269.410233 h kernel: ", None, utc("2026-03-14T02:11:09.410233")),
    "journalctl -o short-monotonic": ("[  130.456250] gpu-a17 kernel: ", UPTIME, None),
    "journalctl -o short-delta": ("[  130.456250 <    0.000012 >] gpu-a17 kernel: ", UPTIME, None),
    "journalctl -o short-delta, first": ("[  130.456250                ] gpu-a17 kernel: ", UPTIME, None),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_form(form: str) -> None:
    """The text behind the head is the kernel's, with the time that the head tells."""
    head, uptime, wall = FORMS[form]
    (record,) = Log().read(f"{head}{TEXT}\n")
    assert record.text == TEXT
    assert record.kernel and not record.live
    assert record.usec == (None if uptime is None else uptime // timedelta(microseconds=1))
    if wall is None:
        assert not told_wall(record.at)
    else:
        assert record.at.utc == wall


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_line_endings(ending: str) -> None:
    """DOS endings and a missing last one change nothing."""
    log = Log()
    assert [one.text for one in log.read(f"a\n{TEXT}{ending}")] == [TEXT]
    assert log.reader.lines == 2


@pytest.mark.parametrize(
    "head",
    [
        "Mar 14 02:11:09 host python3[812]: ",
        "Mar 14 02:11:09 host python3: ",
        "Mar 14 02:11:09 host logger: kernel: ",
        "Mar 14 02:11:09 host my kernel: ",
        "Mar 14 02:11:09 host kernel[1]: ",
        "Mar 14 02:11:09 host kernelx: ",
        "Mar 14 02:11:09 kernel sshd[1]: kernel: ",
        "Mar 14 02:11:09 NVRM: kernel: ",
        "Mar 14 02:11:09 host user.err kernel: ",
        "2026-02-03T11:40:55.410233+00:00 Node sshd[1]: kernel: ",
        "2026-02-03T11:40:55+00:00 Node foo kernel: ",
        "Sat 2026-03-14 02:11:09 UTC host systemd[1]: kernel: ",
        "1773454269.410233 host logger: ",
        "user  :err   : [  130.456250] ",
        "daemon:info  : [  130.456250] ",
        "local7:info  : ",
        "<11>[  130.456250] ",
        "<2051>[  130.456250] ",
        "<12>Mar 14 02:11:09 host kernel: ",
        "<12>1 2026-02-03T11:40:55.41+00:00 node kernel - - - ",
        "<4>1 2026-02-03T11:40:55.41+00:00 node logger - - - ",
        "11,744,677953117,-;",
        "2051,744,677953117,-;",
    ],
)
def test_line_of_a_process_is_dropped(head: str) -> None:
    """Other facilities and other identifiers than `kernel` are not the kernel's, whatever stands behind."""
    assert Log().read(f"{head}{TEXT}\n") == []


def test_short_monotonic_is_told_from_dmesg_by_its_host() -> None:
    """Where the stamp looks like dmesg's, the host name of the log tells which lines are a process's."""
    log = (
        "[    1.000000] gpu-a17 kernel: Linux version 6.12\n"
        f"[  130.456250] gpu-a17 python3[12]: {TEXT}\n"
        f"[  130.456250] gpu-a17 logger: kernel: {TEXT}\n"
        f"[  130.456251] gpu-a17 kernel: {TEXT}\n"
    )
    assert [one.line for one in Log().read(log)] == [4]


@pytest.mark.parametrize("text", ["[drm] NVRM: x", "[Hardware Error]: NVRM: x", "{1}[Hardware Error]: NVRM: x"])
def test_brackets_of_the_text_stay(text: str) -> None:
    """Only stamps are taken off."""
    assert [one.text for one in Log().read(f"{text}\n[    1.000000] {text}\n")] == [text, text]


# --- saved /dev/kmsg -----------------------------------------------------------------------------


def test_kmsg_record_is_unescaped_and_has_its_fields() -> None:
    """Escapes become bytes, KEY lines become fields, and the next record is its own."""
    log = (
        "4,9120,88120450123,-,caller=T12;NVRM: a\\x0ab \\xc3\\xa9 \\x5c;c\n"
        " SUBSYSTEM=pci\n"
        " DEVICE=+pci:0000:3b:00.0\n"
        "6,9121,88120450124,c;NVRM: next\n"
    )
    first, second = Log().read(log)
    assert first.text == "NVRM: a\nb é \\;c"
    assert dict(first.fields) == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:3b:00.0"}
    assert (first.level, first.seq, first.usec, first.line) == (4, 9120, 88120450123, 1)
    assert (second.text, second.line, dict(second.fields)) == ("NVRM: next", 4, {})


# --- journal JSON --------------------------------------------------------------------------------

ENTRY: dict[str, Any] = {
    "__REALTIME_TIMESTAMP": "1773454269410233",
    "__MONOTONIC_TIMESTAMP": "140000000",
    "_BOOT_ID": "5c0f1e2d3c4b4a59887766554433aabb",
    "_TRANSPORT": "kernel",
    "SYSLOG_FACILITY": "0",
    "SYSLOG_IDENTIFIER": "kernel",
    "_SOURCE_MONOTONIC_TIMESTAMP": "130456250",
    "PRIORITY": "4",
    "_KERNEL_DEVICE": "+pci:0000:3b:00.0",
    "MESSAGE": TEXT,
}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda entry: json.dumps(entry, separators=(",", ":")),
        lambda entry: json.dumps(entry),
        lambda entry: "{ " + ", ".join(f'"{k}" : {json.dumps(v)}' for k, v in entry.items()) + " }",
        lambda entry: "\x1e" + json.dumps(entry),
        lambda entry: f"data: {json.dumps(entry)}\n",
        lambda entry: json.dumps(entry, indent="\t"),
        lambda entry: json.dumps({**entry, "MESSAGE": list(TEXT.encode())}, separators=(",", ":")),
        lambda entry: json.dumps({**entry, "MESSAGE": list(TEXT.encode())}),
        lambda entry: json.dumps({name: value for name, value in entry.items() if name != "SYSLOG_FACILITY"}),
    ],
    ids=["json", "spaced", "old journalctl", "json-seq", "json-sse", "json-pretty", "bytes", "bytes, spaced", "old"],
)
def test_journal_json(wrap: Any) -> None:
    """An entry of the kernel gives its message with its boot, its device and both its clocks."""
    (record,) = Log().read(wrap(ENTRY) + "\n" + json.dumps({**ENTRY, "MESSAGE": "other"}) + "\n")
    assert record.text == TEXT
    assert record.at == Instant(
        boot_id=ENTRY["_BOOT_ID"], boottime=UPTIME, utc=utc("2026-03-14T02:11:09.410233"), synced=False
    )
    assert (record.level, record.usec, record.line) == (4, 130456250, 1)
    assert record.fields["DEVICE"] == "+pci:0000:3b:00.0"


@pytest.mark.parametrize(
    "change",
    [
        {"SYSLOG_FACILITY": "1"},
        {"SYSLOG_FACILITY": ["0", "1"]},
        {"SYSLOG_FACILITY": 0},
        {"_TRANSPORT": "syslog"},
        {"_TRANSPORT": "journal"},
        {"_TRANSPORT": "stdout"},
        {"_TRANSPORT": ["kernel", "stdout"]},
        {"_TRANSPORT": None},
        {"MESSAGE": None},
        {"MESSAGE": [300, 1]},
        {"MESSAGE": {"NVRM: ": 1}},
        {"MESSAGE": ["NVRM: a", "NVRM: b"]},
    ],
)
def test_journal_entry_that_is_not_the_kernels(change: dict[str, Any]) -> None:
    """Transport and facility both have to say kernel; a message that is no text is none."""
    assert Log().read(json.dumps({**ENTRY, "X": "NVRM: ", **change})) == []


def test_malformed_entry_is_counted() -> None:
    """A line that begins as JSON and is none is no kernel text."""
    log = Log()
    assert log.read(f'{{"MESSAGE":"{TEXT}\n[    1.000000] {TEXT}\n')[0].line == 2
    assert log.reader.malformed == 1


def test_dmesg_json() -> None:
    """dmesg -J prints one key a line."""
    entry = '      {\n         "pri": 6,\n         "time":    12.3,\n         "msg": "NVRM: a\\n\\u00e9"\n      }\n'
    (record,) = Log().read('{\n   "dmesg": [\n' + entry + "   ]\n}\n")
    assert (record.text, record.line) == ("NVRM: a\né", 6)


# --- records of several lines --------------------------------------------------------------------

HEADS = ["[  130.456250] ", "kern  :warn  : [  130.456250] ", "Mar 14 02:11:09 gpu-a17 kernel: ", "<4>[  130.456250] "]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("step", [1 << 20, 7, 1])
def test_indented_lines_belong_to_the_record(head: str, step: int) -> None:
    """dmesg and journalctl indent further lines of a record by the width of its head."""
    pad = " " * len(head)
    log = f"{head}before\n{head}one\n{pad}NVRM: two\n{pad}three\n{head}NVRM: after\n"
    first, second = Log(sample=0).read(log, step=step)
    assert (first.text, first.line) == ("one\nNVRM: two\nthree", 2)
    assert (second.text, second.line) == ("NVRM: after", 5)


def test_indented_text_of_its_own_is_a_record() -> None:
    """A call trace in bare text is indented and still a line by itself."""
    records = Log().read("head\n NVRM: a\n  NVRM: b\n[    1.000000] x\n     NVRM: less than the head\n")
    assert [one.text for one in records] == [" NVRM: a", "  NVRM: b", "     NVRM: less than the head"]


def test_lines_behind_a_dropped_record_are_dropped_with_it() -> None:
    """A process that writes a newline to /dev/kmsg gets no kernel line that way."""
    head = "user  :err   : [  130.456250] "
    assert Log().read(f"{head}x\n{' ' * len(head)}{TEXT}\n") == []


@pytest.mark.parametrize("step", [1 << 20, 5])
def test_unfinished_text_goes_on_in_dmesg_s(step: int) -> None:
    """dmesg -S repeats the head on each line of a record: names with newlines, the probe's message."""
    head = "[  130.456250] "
    log = (
        f"{head}process '/tmp/x\n{head}NVRM: y' started with executable stack\n"
        f"{head}INFO: task a\n{head}b:12 blocked for more than 120 seconds.\n"
        f"{head}NVRM: The NVIDIA GPU 0000:b3:00.0\n{head}NVRM: (PCI ID: 10de:26b9) installed\n"
        f"{head}TSC doesn't count\n{head}NVRM: a\n"
    )
    assert [(one.line, one.text) for one in Log(sample=0).read(log, step=step)] == [
        (1, "process '/tmp/x\nNVRM: y' started with executable stack"),
        (3, "INFO: task a\nb:12 blocked for more than 120 seconds."),
        (5, "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b9) installed"),
        (8, "NVRM: a"),
    ]


def test_rsyslog_escapes_are_undone() -> None:
    """rsyslog writes a newline inside a message as #012."""
    (record,) = Log().read("Mar 14 02:11:09 h kernel: NVRM: a#012NVRM: b#011c CPU#12\n")
    assert record.text == "NVRM: a\nNVRM: b\tc CPU#12"


# --- what is fed, and when -----------------------------------------------------------------------


def test_every_record_is_fed_while_open() -> None:
    """A detector with an open block gets what comes, then the needles decide again."""
    log = Log(opener="INFO: task", closer="end")
    records = log.read("a\nb\nINFO: task x\n c\nd\nend\ne\nf\nNVRM: g\n")
    assert [(one.line, one.text) for one in records] == [
        (3, "INFO: task x"), (4, " c"), (5, "d"), (6, "end"), (9, "NVRM: g"),
    ]  # fmt: skip


def test_time_flushes_each_second_while_open() -> None:
    """An open detector hears of the log's own time, once a second, and at the end."""
    log = Log(opener="INFO: task")
    log.read("\n".join(f"[ {10 + n / 4:11.6f}] INFO: task x" for n in range(13)))
    assert [one.boottime.total_seconds() for one in log.flushes] == [11.25, 12.25, 73.0]


def test_numbers_go_on_over_several_logs() -> None:
    """Lines are counted over all input."""
    log = Log()
    assert [one.line for one in log.read(f"a\n{TEXT}\n", f"{TEXT}", f"b\n{TEXT}\n")] == [2, 3, 5]


def test_time_goes_on_where_a_line_has_none_and_boots_are_told_apart() -> None:
    """A stamp that falls back is another boot; uptime goes on where a line has none; a wall clock does not."""
    log = Log().read(
        "Mar 14 02:00:00 h kernel: [  100.000000] NVRM: a\nNVRM: b\n[  160.000000] NVRM: c\n[    1.000000] NVRM: d\n"
        "Mar 14 03:00:10 h kernel: NVRM: e\n"
    )
    assert [one.at.boot_id for one in log] == ["text", "text", "text", "text.2", "text.2"]
    assert [one.at.boottime.total_seconds() for one in log] == [100, 100, 160, 1, 1]
    assert [told_wall(one.at) for one in log] == [True, False, False, False, True]


def test_stamps_without_a_zone_are_in_the_given_one() -> None:
    """A syslog file is read where it was written, or told where that was."""
    (record,) = Log(zone=timezone(timedelta(hours=2))).read("Mar 14 02:11:09 h kernel: NVRM: a\n")
    assert record.at.utc == utc("2026-03-14T00:11:09")


@pytest.mark.parametrize("offset", ["+99:99", "+9999", "-24:00", "+00:60"])
def test_an_offset_that_no_zone_has_ends_no_reading(offset: str) -> None:
    (record,) = Log().read(f"2026-03-14T02:11:09{offset} h kernel: {TEXT}\n")
    assert "NVRM" in record.text


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1 << 20, 100_000])
def test_line_without_an_end_costs_no_memory(step: int) -> None:
    """A line of many MB is cut, and the next one is read under its right number."""
    log = Log(sample=0)
    records = log.read(b"NVRM: " + b"x" * (5 << 20) + b"\n" + TEXT.encode() + b"\n", step=step)
    assert [one.line for one in records] == [1, 2]
    assert len(records[0].text) <= LONGEST_LINE
    assert log.reader.lines == 2


def test_record_of_endless_lines_is_cut() -> None:
    """A log that goes on indenting gives records of bounded size, and no line is counted twice."""
    log = Log()
    records = log.read("[    1.000000] NVRM: a\n" + ("               " + "x" * 1000 + "\n") * 3000)
    assert max(len(one.text) for one in records) <= 16 << 10
    assert log.reader.lines == 3001


@given(st.lists(st.binary(max_size=60), max_size=40), st.integers(1, 200), st.booleans())
def test_arbitrary_bytes_never_raise_and_lines_stay_counted(lines: Sequence[bytes], step: int, opened: bool) -> None:
    """Whatever comes in, the reader ends, and has counted what it read."""
    data = b"\n".join(lines)
    log = Log(opener="" if opened else "\0", sample=0)
    log.open = opened
    for record in log.read(data, step=step):
        assert record.line is not None and 1 <= record.line <= log.reader.lines
    assert log.reader.lines == data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


PIECES = [*HEADS, "4,1,1,-;", " A=b", "{", '{"MESSAGE":', "}", "\n", "\n               "]
PIECES += [
    "NVRM: ",
    "INFO: task ",
    "x",
    "user  :err : ",
    "<11>",
    "'",
    "Mar 14 02:11:09 h ",
    "kernel: ",
    "\t",
    "99999999999",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.integers(1, 60))
def test_blocks_make_no_difference(text: str, step: int) -> None:
    """A log gives the same records however its bytes arrive."""
    whole, pieces = Log(sample=0).read(text), Log(sample=0).read(text, step=step)
    assert [(one.line, one.text) for one in whole] == [(one.line, one.text) for one in pieces]


@given(st.binary(max_size=200), st.lists(st.binary(min_size=1, max_size=3), max_size=5), st.lists(st.integers(0, 20)))
def test_search_finds_the_first_of_all_needles(data: bytes, needles: list[bytes], steps: list[int]) -> None:
    """The search gives what looking for each needle anew would give."""
    search, start = Search(needles, data), 0
    for step in steps:
        start += step
        places = [place for place in (data.find(one, start) for one in needles) if place >= 0]
        assert search.after(start) == min(places, default=-1)


# --- a pipe that stays open ------------------------------------------------------------------------


def test_in_a_quiet_second_whole_lines_are_taken_and_what_is_open_grows_older() -> None:
    log = Log(opener="Xid")
    taken: list[int] = []

    def pipe() -> Iterator[bytes | None]:
        yield None
        yield f"[    1.000000] {TEXT}\n[    2.000000] INFO: ta".encode()
        for _ in range(4):
            yield None  # the first ends the waiting for more of the log's form
            taken.append(len(log.records))
        yield b"sk x blocked\n"

    log.reader.read(_Live(pipe()))
    assert taken == [0, 1, 1, 1]
    assert [one.boottime for one in log.flushes] == [timedelta(seconds=number) for number in (2, 3, 4)]
    assert [(one.line, one.text) for one in log.records] == [(1, TEXT), (2, "INFO: task x blocked")]


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
def test_packed_logs_are_opened_by_their_first_bytes(tmp_path: Path, pack: Any) -> None:
    """The name of the file does not matter."""
    path = tmp_path / "log"
    path.write_bytes(pack(f"a\n{TEXT}\n".encode()))
    log = Log()
    with open_log(str(path)) as stream:
        log.reader.read(stream)
    assert [one.line for one in log.records] == [2]


def test_unreadable_log_is_named(tmp_path: Path) -> None:
    """The message says which file and why."""
    with pytest.raises(LogUnreadable, match=r"missing: No such file"), open_log(str(tmp_path / "missing")):
        pass
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(LogUnreadable, match=r"broken\.gz"), open_log(str(broken)) as stream:
        Log().reader.read(stream)
