"""The form of one `/dev/kmsg` record: header, text, fields (Linux `Documentation/ABI/testing/dev-kmsg`).

`PRIO,SEQ,USEC,FLAG[,more…];TEXT\\n` and any number of ` KEY=VALUE\\n` lines. Everything here takes
arbitrary bytes and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..domain.model import EMPTY

# A 64-bit number has at most 20 digits; a stamp of 10^15 µs would be 31 years of uptime.
_MOST_DIGITS = 20
_MOST_USEC = 10**15
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


class RawRecord(NamedTuple):
    """A record whose header was understood; `body` is text and fields, still escaped.

    `prio` is facility * 8 + level: only 0 to 7 come from the kernel itself.
    """

    prio: int
    seq: int
    usec: int
    body: bytes

    @property
    def kernel(self) -> bool:
        """True for facility 0; a process that writes to `/dev/kmsg` cannot get it."""
        return self.prio < 8


def split_record(raw: bytes) -> RawRecord | None:
    """Return the record's header and body, or None if `raw` is no record."""
    head, found, body = raw.partition(b";")
    parts = head.split(b",", 3)
    if not found or len(parts) < 4:
        return None
    prio, seq, usec = parts[0], parts[1], parts[2]
    if not (prio.isdigit() and seq.isdigit() and usec.isdigit()) or len(head) - len(parts[3]) > 3 * _MOST_DIGITS + 3:
        return None
    stamp = int(usec)
    return RawRecord(int(prio), int(seq), stamp, body) if stamp <= _MOST_USEC else None


def unescape(text: bytes) -> str:
    """Return the text with each `\\xNN` as the byte it stands for; what is no UTF-8 then stays as `\\xNN`."""
    if b"\\" in text:
        text = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text)
    return text.decode("utf-8", "backslashreplace")


def record_text(body: bytes) -> str:
    """Return the unescaped text of a record's body."""
    return unescape(body.partition(b"\n")[0])


def record_fields(body: bytes) -> Mapping[str, str]:
    """Return the ` KEY=VALUE` lines of a body, such as SUBSYSTEM and DEVICE of dev_printk."""
    _, _, rest = body.partition(b"\n")
    if not rest:
        return EMPTY
    fields = {}
    for line in rest.split(b"\n"):
        key, found, value = line[1:].partition(b"=")
        if found and line.startswith(b" "):
            fields[unescape(key)] = unescape(value)
    return fields
