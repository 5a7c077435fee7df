"""A bundle of evidence on disk: a folder for root only, complete or not there, and old ones going first."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

_NAME = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]+\Z")
_PARTIAL = ".partial-"
# Whatever the clock says, these newest ones stay.
_ALWAYS_KEPT = 3


@dataclass(slots=True)
class Bundle:
    """One bundle while it is written. `room` bytes are left of what it may take."""

    folder: Path
    name: str
    room: int
    pieces: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def _partial(self) -> Path:
        return self.folder / f"{_PARTIAL}{self.name}"

    @classmethod
    def begin(cls, folder: Path, *, at: datetime, request: str, room: int) -> Bundle:
        """Make an empty bundle of `request` below `folder`; OSError when that cannot be written."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "-", request)
        bundle = cls(folder=folder, name=f"{at:%Y%m%dT%H%M%SZ}-{safe}", room=room)
        bundle._partial.mkdir(mode=0o700, parents=True)
        return bundle

    def add(self, name: str, data: bytes) -> None:
        """Write one piece; what does not fit or cannot be written is noted as skipped."""
        if len(data) > self.room:
            self.skipped[name] = "the bundle is full"
            return
        try:
            place = os.open(
                self._partial / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(place, "wb") as file:
                file.write(data)
        except OSError as error:
            self.skipped[name] = f"cannot be written: {error.strerror}"
            return
        self.room -= len(data)
        self.pieces.append(name)

    def skip(self, name: str, why: str) -> None:
        """Note why a piece is not there."""
        self.skipped[name] = why

    def finish(self) -> Path:
        """Give the bundle its name in one step and return its place; OSError if that fails."""
        notes = "".join(f"{name}: {why}\n" for name, why in self.skipped.items())
        if notes:
            self.add("SKIPPED.txt", notes.encode("utf-8", "replace"))
        place = self.folder / self.name
        self._partial.rename(place)
        return place


def rotate(root: Path, *, max_total: int, keep: timedelta, now: datetime) -> int:
    """Remove the oldest bundles below `root` (one folder an incident) until both limits hold; return how many.

    Folders that are not bundles, and links, are left alone. What a crash left half written goes too.
    """
    found = sorted(_bundles(root), key=lambda place: place.name, reverse=True)
    removed, total = 0, 0
    for rank, place in enumerate(found):
        total += _size(place)
        old = now - datetime.strptime(place.name[:16], "%Y%m%dT%H%M%S%z") > keep
        if rank >= _ALWAYS_KEPT and (old or total > max_total):
            shutil.rmtree(place, ignore_errors=True)
            removed += 1
            _drop_if_empty(place.parent)
    return removed


def _bundles(root: Path) -> list[Path]:
    places = []
    for folder in _folders(root):
        for place in _folders(folder):
            if place.name.startswith(_PARTIAL):
                shutil.rmtree(place, ignore_errors=True)
            elif _NAME.match(place.name):
                places.append(place)
    return places


def _folders(root: Path) -> list[Path]:
    try:
        return [Path(entry) for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _size(place: Path) -> int:
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(place))
    except OSError:
        return 0


def _drop_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
