"""Opens a text log, packed or not."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import select
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


class LogUnreadable(Exception):
    """A log could not be opened or is damaged; the message names it and says why."""


class Pipe:
    """A pipe that somebody may still write to: what is there is read at once."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe: io.BufferedReader = cast("io.BufferedReader", pipe)
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        self._begun = False

    def read1(self, size: int) -> bytes | None:
        """Return what is there, None after a second without a byte, b"" at the end."""
        if self._begun and not self._poll.poll(1000):
            return None
        self._begun = True  # the first time it returns what was looked at to learn the form of the log
        return self._pipe.read1(size)


@contextmanager
def open_log(name: str, *, live: bool = False) -> Iterator[BinaryIO | Pipe]:
    """Open the file `name` (`-` is standard input), unpacking gzip and xz by their first bytes.

    With `live`, plain text of anything but a regular file is read as it comes.
    Raises LogUnreadable, also for what goes wrong while it is read inside the block.
    """
    try:
        if name == "-":
            yield _opened(sys.stdin.buffer, live)
        else:
            with Path(name).open("rb") as file:
                yield _opened(file, live)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            raise  # our own output, not the log
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LogUnreadable(f"{'standard input' if name == '-' else name}: {why}") from error


def _opened(file: BinaryIO, live: bool) -> BinaryIO | Pipe:
    buffered = file if hasattr(file, "peek") else io.BufferedReader(cast("io.RawIOBase", file))
    start = buffered.peek(6)[:6]
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_second_is_zero(start):
        raise OSError(0, "it is UTF-16; turn it into UTF-8 first: iconv -f UTF-16 -t UTF-8")
    if start.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
    if start.startswith(b"\xfd7zXZ\x00"):
        return cast("BinaryIO", lzma.LZMAFile(buffered))
    return Pipe(buffered) if live and _may_grow(buffered) else buffered


def _every_second_is_zero(start: bytes) -> bool:
    """Return whether these are letters in UTF-16 without a mark; all zeros are what a crash leaves in a file."""
    return any(start[one::2] == bytes(3) and all(start[other::2]) for one, other in ((0, 1), (1, 0)))


def _may_grow(file: BinaryIO) -> bool:
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # no file of the system's
        return False
