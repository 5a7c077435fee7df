"""The head of one physical line of a text log: whose line it is, when it was written, where its text begins.

Read are all forms of dmesg(1) (also -T, -d, -e, -x, -r, -S, -J and --time-format=iso, with the caller
that CONFIG_PRINTK_CALLER adds), the short forms of journalctl(1), syslog files of RFC 3164 and RFC 5424,
saved `/dev/kmsg` records, and bare text. Text without any head counts as the kernel's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from ..domain.model import EMPTY
from . import text_json
from .kmsg_record import split_record, unescape
from .text_time import Stamp, wall_clock

_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_KMSG = re.compile(r"\d{1,20},\d{1,20},\d{1,20},[^;]{0,200};")
_PRIORITY = re.compile(r"<(\d{1,4})>")
_FACILITY = re.compile(
    r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d|local\d) *:"
    rf"({'|'.join(_LEVELS)}) *: ?"
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_DATE = r"[^\s\]\d<]{1,10},? [^\s\]\d<]{1,10} +\d{1,2} \d\d:\d\d:\d\d \d{4}"
_BRACKET = re.compile(
    r"\[(?:"
    r" *(?P<uptime>\d{1,12}\.\d{6})(?: +<[ \d.+*-]{1,24}>| +)?"  # also dmesg -d and journalctl's short-delta
    rf"|(?P<date>{_DATE})(?: <[ \d.]{{1,24}}>)?"
    r"|<[ \d.]{1,24}>| *\+\d{1,12}\.\d{6}|[^\s\]\d]{1,10} ?\d{1,2} \d\d:\d\d"  # dmesg -t -d, -e
    r"| *[TC]\d{1,10}"  # the caller: a task or a CPU
    r")\](?: |$|(?=\[ *[TC]\d))"
)
_DMESG_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{1,9}(?:[+-]\d\d:?\d\d|Z)? ")
_WALL = re.compile(
    r"[^\W\d_]{2,10}\.? \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:[A-Z]{2,5}|[+-]\d{2,4}) "  # short-full
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? "
    r"|[^\W\d_]{2,10}\.? +\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\d{4} )?"
    r"|(?P<unix>\d{9,11}\.\d{6}) "
)
# An optional host, an optional facility.level (BusyBox), and the identifier of the kernel. What ends in
# a colon is an identifier itself and no host.
_KERNEL = re.compile(r"(?:\S*[^\s:] )??(?:(?P<facility>[a-z0-7]+)\.\w+ )?kernel: ?")
_RFC5424 = re.compile(r"1 (?P<stamp>\S+) \S+ (?P<app>\S+) \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?(?:\ufeff)?")
_SHORT_MONOTONIC = re.compile(rb"(?m)^\[ *\d{1,12}\.\d{6}(?: +<[ \d.+*-]{1,24}>| +)?\] ([A-Za-z0-9_.-]{1,64}) kernel: ")
_SYSLOG_ESCAPE = re.compile(r"#0(11|12)")  # tab and newline as rsyslog writes them
_DMESG_JSON = re.compile(r'\s+"msg": ("(?:[^"\\]|\\.)*"),?\s*$')


class Head(NamedTuple):
    """A physical line taken apart. `kernel` False: not the kernel's, so dropped.

    `width` is how far the head reaches: later lines of the same record are indented by so much.
    `record` marks a saved /dev/kmsg record, which ` KEY=VALUE` lines may follow.
    """

    text: str
    kernel: bool = True
    width: int = 0
    stamp: Stamp = Stamp()
    level: int | None = None
    seq: int | None = None
    record: bool = False
    malformed: bool = False
    fields: Mapping[str, str] = EMPTY


def sniff_host(data: bytes) -> str | None:
    """Return the host name in a log of `journalctl -o short-monotonic`, whose stamps look like dmesg's."""
    match = _SHORT_MONOTONIC.search(data)
    return match[1].decode("ascii") if match is not None else None


class LineReader:
    """Reads heads. `zone` is where stamps without a zone were written, `today` ends the year of those without."""

    def __init__(self, *, zone: tzinfo, today: datetime) -> None:
        self._zone = zone
        self._today = today
        self.host: str | None = None

    def read(self, line: str) -> Head:
        """Take one physical line apart. Never raises."""
        if line.startswith("\x1b["):  # dmesg --color=always
            line = _COLOUR.sub("", line)
        if line[:1].isdigit() and _KMSG.match(line) is not None:
            return _kmsg(line)
        if text_json.STARTS.match(line) is not None:
            return _entry(line)
        quoted = _DMESG_JSON.match(line)
        if quoted is not None:
            return _dmesg_json(quoted[1])
        return self._text(line)

    def _text(self, line: str) -> Head:
        start, level = 0, None
        priority = _PRIORITY.match(line)
        if priority is not None:
            if int(priority[1]) > 7:
                return Head(line, kernel=False, width=priority.end())
            start, level = priority.end(), int(priority[1])
            modern = _RFC5424.match(line, start)
            if modern is not None:
                stamp = Stamp(wall=self._wall(modern["stamp"]))
                return self._rest(line, modern.end(), stamp, level, kernel=modern["app"] == "kernel")
        facility = _FACILITY.match(line, start)
        if facility is not None:
            start, level = facility.end(), _LEVELS.index(facility[2])
            if facility[1] != "kern":
                return Head(line, kernel=False, width=self._brackets(line, start, Stamp())[0])
        wall = _WALL.match(line, start) if facility is None else None
        if wall is not None and not _DMESG_ISO.match(line, start):
            return self._syslog(line, wall, level)
        return self._dmesg(line, start, level)

    def _syslog(self, line: str, wall: re.Match[str], level: int | None) -> Head:
        """A wall-clock stamp is followed by host and identifier; only the identifier `kernel` is ours."""
        stamp = Stamp(wall=_unix(wall["unix"]) if wall["unix"] else self._wall(wall[0]))
        named = _KERNEL.match(line, wall.end())
        if named is None or named["facility"] not in (None, "kern"):
            return Head(line, kernel=False, width=_after_identifier(line, wall.end()))
        head = self._rest(line, named.end(), stamp, level)
        return head._replace(text=_SYSLOG_ESCAPE.sub(lambda match: "\t" if match[1] == "11" else "\n", head.text))

    def _dmesg(self, line: str, start: int, level: int | None) -> Head:
        end, stamp = self._brackets(line, start, Stamp())
        if end > start and self.host is not None and line.startswith(self.host + " ", end):
            named = _KERNEL.match(line, end)  # not dmesg but journalctl -o short-monotonic
            if named is None:
                return Head(line, kernel=False, width=_after_identifier(line, end))
            end = named.end()
        return self._rest(line, end, stamp, level)

    def _rest(self, line: str, end: int, stamp: Stamp, level: int | None, kernel: bool = True) -> Head:
        """The kernel's own stamp may follow host and identifier."""
        end, stamp = self._brackets(line, end, stamp)
        return Head(line[end:], kernel=kernel, width=end, stamp=stamp, level=level)

    def _brackets(self, line: str, start: int, stamp: Stamp) -> tuple[int, Stamp]:
        """Skip up to three bracketed stamps and a stamp of dmesg --time-format=iso, and read them."""
        iso = _DMESG_ISO.match(line, start)
        if iso is not None:
            start, stamp = iso.end(), stamp._replace(wall=self._wall(iso[0]))
        for _ in range(3):
            bracket = _BRACKET.match(line, start)
            if bracket is None:
                break
            start = bracket.end()
            if bracket["uptime"]:
                stamp = stamp._replace(uptime=_uptime(bracket["uptime"]))
            elif bracket["date"]:
                stamp = stamp._replace(wall=self._wall(bracket["date"]))
        return start, stamp

    def _wall(self, text: str) -> datetime | None:
        return wall_clock(text, zone=self._zone, today=self._today)


def _kmsg(line: str) -> Head:
    record = split_record(line.encode("utf-8", "backslashreplace"))
    if record is None:
        return Head(line, kernel=False, record=True, malformed=True)
    return Head(
        unescape(record.body),
        kernel=record.kernel,
        stamp=Stamp(uptime=timedelta(microseconds=record.usec)),
        level=record.prio & 7,
        seq=record.seq,
        record=True,
    )


def _entry(line: str) -> Head:
    try:
        entry = text_json.kernel_entry(line)
    except ValueError:
        return Head(line, kernel=False, malformed=True)
    if entry is None:
        return Head(line, kernel=False)
    return Head(entry.text, stamp=entry.stamp, level=entry.level, fields=entry.fields)


def _dmesg_json(quoted: str) -> Head:
    try:
        text = str(json.loads(quoted)).encode("utf-8", "backslashreplace").decode("utf-8")
    except (ValueError, RecursionError):
        return Head(quoted, kernel=False, malformed=True)
    return Head(text)


def _uptime(text: str) -> timedelta | None:
    seconds, _, micro = text.partition(".")
    try:
        return timedelta(seconds=int(seconds), microseconds=int(micro))
    except OverflowError:
        return None


def _unix(text: str) -> datetime | None:
    seconds, _, micro = text.partition(".")
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(seconds), microseconds=int(micro))
    except OverflowError:
        return None


def _after_identifier(line: str, start: int) -> int:
    found = line.find(": ", start)
    return start if found < 0 else found + 2
