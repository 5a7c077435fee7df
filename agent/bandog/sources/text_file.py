"""Opens a text log, packed or not."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


class LogUnreadable(Exception):
    """A log could not be opened or is damaged; the message names it and says why."""


@contextmanager
def open_log(name: str) -> Iterator[BinaryIO]:
    """Open the file `name` (`-` is standard input), unpacking gzip and xz by their first bytes.

    Raises LogUnreadable, also for what goes wrong while it is read inside the block.
    """
    try:
        if name == "-":
            yield _unpacked(sys.stdin.buffer)
        else:
            with Path(name).open("rb") as file:
                yield _unpacked(file)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            raise  # our own output, not the log
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LogUnreadable(f"{'standard input' if name == '-' else name}: {why}") from error


def _unpacked(file: BinaryIO) -> BinaryIO:
    buffered = file if hasattr(file, "peek") else io.BufferedReader(cast("io.RawIOBase", file))
    start = buffered.peek(6)[:6]
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise OSError(0, "it is UTF-16; turn it into UTF-8 first: iconv -f UTF-16 -t UTF-8")
    if start.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
    if start.startswith(b"\xfd7zXZ\x00"):
        return cast("BinaryIO", lzma.LZMAFile(buffered))
    return buffered
