"""Records from text logs: files and standard input, in every form that people have kernel lines in.

The bytes are searched in large blocks for the detectors' needles; only a line that holds one is taken
apart, and every line while a detector is open. Memory stays bounded whatever comes in, and line numbers
count all physical lines from 1. Records from here are never live: text has no facility to vouch for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import BinaryIO, Protocol, TypeAlias, cast

from ..domain.model import EMPTY, Instant, Record
from .kmsg_record import unescape
from .prefilter import Prefilter
from .text_line import Head, LineReader, sniff_host
from .text_time import TextClock

BLOCK = 1 << 20
LONGEST_LINE = 256 << 10  # a journal entry as JSON is some KiB; what is longer is cut
LONGEST_RECORD = 16 << 10  # of text; the kernel's own limit is about 1 KiB
MOST_LINES = 64  # of one record
_SECOND = timedelta(seconds=1)
Pull: TypeAlias = Callable[[int], bytes | None]

# A text that must go on: dmesg -S prints each line of a record with the head and stamp of the first.
_UNFINISHED = re.compile(r"\AINFO: task (?!.*blocked)|\ANVRM: The NVIDIA GPU [0-9a-f:.]+\Z|\s'[^']*\Z", re.S)
_FIELD = re.compile(rb" [A-Z][A-Z0-9_]*=")
_BYTE_ARRAYS = (b'"MESSAGE":[', b'"MESSAGE" : [', b'"MESSAGE": [')


class Live(Protocol):
    """A stream that tells when nothing comes."""

    def read1(self, size: int, /) -> bytes | None:
        """Return up to `size` bytes, b"" at the end, None after a second without any."""


class Search:
    """The next place in one block that holds any needle; each needle passes over the block once."""

    def __init__(self, needles: Iterable[bytes], data: bytes) -> None:
        self._data = data
        self._next = dict.fromkeys(needles, -1)

    def after(self, start: int) -> int:
        """Return the first place at or behind `start`, or -1. `start` never goes back."""
        best = -1
        for needle, place in list(self._next.items()):
            if place < start:
                place = self._data.find(needle, start)
                if place < 0:
                    del self._next[needle]
                    continue
                self._next[needle] = place
            if best < 0 or place < best:
                best = place
        return best


class TextReader:
    """Reads one or more streams as one log.

    `feed` gets each kernel record that holds a needle, and each one while `is_open()`; `flush` gets
    the log's own time once a second while open, and at `close`. `today` ends the year of stamps that
    have none, `zone` is where stamps without a zone were written, `sample` how many bytes are waited
    for to learn a log's form. `lines` counts what was read, `malformed` what could not be understood.
    """

    def __init__(
        self,
        *,
        needles: Iterable[bytes],
        feed: Callable[[Record], None],
        flush: Callable[[Instant], None],
        is_open: Callable[[], bool],
        today: datetime,
        zone: tzinfo = UTC,
        source: str = "text",
        sample: int = 64 << 10,
    ) -> None:
        self._needles = Prefilter(needles).needles
        self._feed = feed
        self._flush = flush
        self._is_open = is_open
        self._source = source
        self._sample_size = sample
        self._heads = LineReader(zone=zone, today=today)
        self._clock = TextClock()
        self._flushed: Instant | None = None
        self.lines = 0
        self.malformed = 0

    def read(self, stream: BinaryIO | Live, *, progress: Callable[[int], None] | None = None) -> None:
        """Read `stream` to its end; `progress` is told the bytes of each block. OSError and EOFError pass."""
        pull: Pull = getattr(stream, "read1", None) or cast("BinaryIO", stream).read
        rest, overlong, quiet = self._sample(pull), False, timedelta()
        if progress is not None:
            progress(len(rest))
        while (chunk := pull(BLOCK)) != b"":
            if chunk is None:
                quiet += _SECOND
                rest = self._catch_up(rest, quiet)
                continue
            quiet = timedelta()
            if progress is not None:
                progress(len(chunk))
            if overlong:  # drop what is left of a line that was too long
                end = chunk.find(b"\n")
                if end < 0:
                    continue
                chunk, overlong = chunk[end:], False
            data = rest + chunk
            cut = _border(data)
            self._block(data[:cut])
            rest = data[cut:]
            if len(rest) > LONGEST_LINE:
                cut = rest.rfind(b"\n") + 1
                self._block(rest[:cut])
                rest = rest[cut:]
                if len(rest) > LONGEST_LINE:
                    rest, overlong = rest[:LONGEST_LINE], True
        self._block(rest)

    def _catch_up(self, rest: bytes, quiet: timedelta) -> bytes:
        """Take the whole lines of `rest`, after which nothing came for `quiet`; return what is left."""
        cut = rest.rfind(b"\n") + 1
        self._block(rest[:cut])
        if self._is_open():
            self._flush(self._clock.now.plus(quiet))
        return rest[cut:]

    def _sample(self, pull: Pull) -> bytes:
        """Read the beginning of a log, of which its form is learnt, and return it."""
        start = b""
        while len(start) < self._sample_size and (chunk := pull(BLOCK)) != b"":
            if chunk is None and start:
                break
            start += chunk or b""
        self._heads.host = sniff_host(start[: self._sample_size])
        return start

    def close(self) -> None:
        """End the log: what is open is flushed, as if a minute had passed without a line."""
        self._flush(self._clock.now.plus(timedelta(minutes=1)))

    def _block(self, data: bytes) -> None:
        """Take whole lines. Between needles nothing is done but counting."""
        if not data:
            return
        search = Search((*self._needles, *_BYTE_ARRAYS), data)
        start = 0
        while start < len(data):
            if not self._is_open():
                place = search.after(start)
                if place < 0:
                    break
                found = self._beginning(data, start, place)
                self.lines += data.count(b"\n", start, found)
                start = found
            start = self._record(data, start)
        self.lines += data.count(b"\n", start) + (start < len(data) and not data.endswith(b"\n"))

    def _beginning(self, data: bytes, start: int, place: int) -> int:
        """Return where the record of the line at `place` begins; lines before `start` are done."""
        line = data.rfind(b"\n", start, place) + 1 or start
        before, same = line, data[line:place]
        for _ in range(MOST_LINES):
            if before <= start or not data.startswith((b" ", b"\t"), before):
                break
            before = data.rfind(b"\n", start, before - 1) + 1 or start
        if before < line and not same.lstrip().startswith(b'"msg": '):  # dmesg -J: a line by itself
            head = self._heads.read(_decode(data, before, data.index(b"\n", before)))
            indented = len(same) - len(same.lstrip(b" "))
            if data.startswith(b"{", before) or head.record or 0 < head.width <= indented:
                return before
            return line
        return self._unfinished_before(data, start, line)

    def _unfinished_before(self, data: bytes, start: int, line: int) -> int:
        """Return the line before `line` if that is its record's first in a log of dmesg -S, else `line`."""
        if line <= start or not data.startswith((b"[", b"<", b"kern"), line):
            return line
        before = data.rfind(b"\n", start, line - 1) + 1 or start
        head = self._heads.read(_decode(data, before, line - 1))
        return before if self._goes_on(head, data, before, line) else line

    def _goes_on(self, head: Head, data: bytes, first: int, line: int) -> bool:
        """Return whether the line at `line` has the very head of the one at `first`, whose text is unfinished."""
        if not head.stamp.uptime or head.width == 0:  # before the clock starts every stamp is 0
            return False
        prefix = data[first : first + head.width]
        return data.startswith(prefix, line) and _UNFINISHED.search(head.text) is not None

    def _record(self, data: bytes, start: int) -> int:
        """Take the record that begins at `start`, with its further lines, and return what follows it."""
        number = self.lines + 1
        end = _line_end(data, start)
        if data.startswith((b"{\n\t", b"{\n "), start):  # journalctl -o json-pretty
            end = _closing(data, end)
        head = self._heads.read(_decode(data, start, end))
        self.malformed += head.malformed
        texts, fields = [head.text], dict(head.fields)
        following = end + 1
        for _ in range(MOST_LINES):
            if following >= len(data):
                break
            end = _line_end(data, following)
            if head.record:
                if not _FIELD.match(data, following):
                    break
                key, _, value = _decode(data, following + 1, end).partition("=")
                fields[unescape(key.encode())] = unescape(value.encode("utf-8", "backslashreplace"))
            elif self._continues(head._replace(text="\n".join(texts)), data, start, following):
                texts.append(_decode(data, following + head.width, end))
            else:
                break
            following = end + 1
        self.lines += data.count(b"\n", start, following) + (following > len(data))
        self._take(head, "\n".join(texts)[:LONGEST_RECORD], number, fields)
        return min(following, len(data))

    def _continues(self, head: Head, data: bytes, first: int, line: int) -> bool:
        """Return whether the line at `line` is a further line of the record at `first`."""
        indented = head.width > 0 and data.startswith(b" " * head.width, line)
        return indented or self._goes_on(head, data, first, line)

    def _take(self, head: Head, text: str, number: int, fields: dict[str, str]) -> None:
        if not head.kernel:
            return
        at = self._clock.at(head.stamp)
        if not self._is_open():
            self._flushed = None
        elif self._flushed is None:
            self._flushed = at
        elif _apart(self._flushed, at):
            self._flushed = at
            self._flush(at)
        uptime = head.stamp.uptime
        self._feed(
            Record(
                text=text,
                at=at,
                source=self._source,
                level=head.level,
                seq=head.seq,
                usec=None if uptime is None else uptime // timedelta(microseconds=1),
                line=number,
                fields=fields or EMPTY,
            )
        )


def _apart(one: Instant, other: Instant) -> bool:
    return one.boot_id != other.boot_id or abs(other.boottime - one.boottime) >= _SECOND


def _line_end(data: bytes, start: int) -> int:
    end = data.find(b"\n", start)
    return len(data) if end < 0 else end


def _closing(data: bytes, end: int) -> int:
    """Return the end of the line with the closing brace of an entry that began before `end`."""
    close = data.find(b"\n}", end)
    return _line_end(data, close + 1) if 0 <= close <= end + LONGEST_LINE else end


def _border(data: bytes) -> int:
    """Return where the last record of `data` may begin: it waits for what follows."""
    place = data.rfind(b"\n", 0, len(data) - 1)
    for _ in range(MOST_LINES):
        if place < 0:
            break
        before = data.rfind(b"\n", 0, place)
        if data[place + 1] not in b" \t}" and not _same_stamp(data, before + 1, place + 1):
            break
        place = before
    return place + 1


def _same_stamp(data: bytes, one: int, other: int) -> bool:
    """Return whether two lines begin with the same bracketed stamp, as those of one record in dmesg -S do."""
    stamp, found, _ = data[other : other + 64].partition(b"]")
    unknown = not found and len(data) - other < 64  # the line is not here yet
    return (bool(found) or unknown) and data.startswith(stamp + found, one)


def _decode(data: bytes, start: int, end: int) -> str:
    return data[start : min(end, start + LONGEST_LINE)].rstrip(b"\r").decode("utf-8", "backslashreplace")
