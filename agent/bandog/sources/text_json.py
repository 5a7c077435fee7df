"""One entry of `journalctl -o json` (also json-seq, json-sse, json-pretty), and which entries are the kernel's.

Format: systemd's "Journal JSON Format". A field with control or non-UTF-8 bytes comes as an array of
byte values, one that is too large as null.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from .text_time import Stamp

STARTS = re.compile(r"(?:\x1e|data: )?\{\s*(?:\"|$)")
"""How an entry begins. A kernel line can begin with a brace too (`{1}[Hardware Error]: …`)."""

_MOST_USEC = 1 << 62


class Entry(NamedTuple):
    """An entry of the kernel itself."""

    text: str
    stamp: Stamp
    level: int | None
    fields: dict[str, str]


def kernel_entry(line: str) -> Entry | None:
    """Return the entry in `line` if it came from the kernel; ValueError if `line` is no JSON object.

    `_TRANSPORT=kernel` alone is also true for what a process wrote to /dev/kmsg: the facility tells.
    An old journald leaves facility 0 out.
    """
    raw = line.strip("\x1e \t\r\n").removeprefix("data: ")
    try:
        entry = json.loads(raw)
    except RecursionError:
        raise ValueError("too deeply nested") from None
    if not isinstance(entry, dict):
        raise ValueError("no JSON object")
    if entry.get("_TRANSPORT") != "kernel" or entry.get("SYSLOG_FACILITY", "0") != "0":
        return None
    text = _text(entry.get("MESSAGE"))
    if text is None:
        return None
    names = {"_KERNEL_DEVICE": "DEVICE", "_KERNEL_SUBSYSTEM": "SUBSYSTEM"}
    fields = {names[key]: value for key, value in entry.items() if key in names and isinstance(value, str)}
    level = _number(entry.get("PRIORITY"))
    return Entry(text, _stamp(entry), level if level is not None and level < 8 else None, fields)


def _text(message: Any) -> str | None:
    if isinstance(message, str):
        return message.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates
    if isinstance(message, list) and all(type(one) is int and 0 <= one < 256 for one in message):
        return bytes(message).decode("utf-8", "backslashreplace")
    return None


def _number(value: Any) -> int | None:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20):
        return None
    number = int(value)
    return number if number < _MOST_USEC else None


def _stamp(entry: dict[str, Any]) -> Stamp:
    wall = _number(entry.get("_SOURCE_REALTIME_TIMESTAMP")) or _number(entry.get("__REALTIME_TIMESTAMP"))
    up = _number(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    if up is None:  # when journald read it, which at boot is some seconds late
        up = _number(entry.get("__MONOTONIC_TIMESTAMP"))
    boot = entry.get("_BOOT_ID")
    return Stamp(
        uptime=_since(up),
        wall=_date(wall),
        boot=boot if isinstance(boot, str) and boot else None,
    )


def _since(usec: int | None) -> timedelta | None:
    if usec is None:
        return None
    try:
        return timedelta(microseconds=usec)
    except OverflowError:
        return None


def _date(usec: int | None) -> datetime | None:
    if usec is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=usec)
    except OverflowError:
        return None
