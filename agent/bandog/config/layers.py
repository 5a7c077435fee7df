"""Finds the configuration files of each layer, reads them, and lays one layer over the other.

The main file and `conf.d` are merged by key; policies are replaced by file name, the site's over
the shipped ones; services have one layer.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import problems
from .problems import Problem
from .yaml12 import LIMIT, Document, read_document

_REPLACES = re.compile(rb"^#\s*replaces:\s*([0-9a-f]{12})\s*$", re.MULTILINE)
# /…/agent/bandog/config/layers.py → the checkout that holds agent/ and policies/
_CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file: where it lies, how problems name it, and what stands in it."""

    path: Path
    shown: str
    layer: str = "site"
    data: bytes = b""
    readable_by_others: bool = False

    @property
    def digest(self) -> str:
        """What `# replaces:` of a site's copy must say."""
        return hashlib.sha256(self.data).hexdigest()[:12]

    @property
    def replaces(self) -> str | None:
        """The digest of the shipped file that the site's copy was made from, if it says so."""
        found = _REPLACES.search(self.data.replace(b"\r\n", b"\n"))
        return found[1].decode() if found else None


def shipped_policies_dir(option: Path | None = None) -> Path | None:
    """Return where the shipped policies lie: the option, the checkout, the prefix or /usr/share."""
    if option is not None:
        return option
    checkout = _CHECKOUT / "policies"
    for folder in (
        checkout if (_CHECKOUT / "agent").is_dir() else None,
        Path(sys.prefix) / "share/bandog/policies",
        Path("/usr/share/bandog/policies"),
    ):
        if folder is not None and folder.is_dir():
            return folder
    return None


def read_source(path: Path, shown: str, layer: str = "site") -> tuple[Source | None, list[Problem]]:
    """Read one file's bytes. Never blocks on a pipe or a device and never reads more than the limit."""
    try:
        # O_NONBLOCK: a FIFO put there by mistake must not stop us at open().
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                return None, [Problem.of("not-a-file", shown)]
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data = file.read(LIMIT + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return None, [Problem.of("unreadable", shown, why=why)]
    others = bool(info.st_mode & stat.S_IROTH)
    return Source(path=path, shown=shown, layer=layer, data=data, readable_by_others=others), []


def read_folder(folder: Path, shown: str, layer: str = "site") -> tuple[list[Source], list[Problem]]:
    """Read the *.yaml files of `folder` by name; a folder that is not there holds none."""
    sources: list[Source] = []
    found: list[Problem] = []
    try:
        names = sorted(one.name for one in folder.iterdir())
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [Problem.of("unreadable", shown, why=error.strerror or "")]
    for name in names:
        # What cannot be shown as text cannot be named in a message either.
        printable = os.fsencode(name).decode("utf-8", "backslashreplace")
        label = f"{shown}/{printable}"
        if name.startswith("."):
            continue
        if name.endswith(".yml"):
            found.append(Problem.of("suffix", label, is_warning=True, folder=shown))
        elif name.endswith(".yaml"):
            source, troubles = read_source(folder / name, label, layer)
            found += troubles
            sources += [source] if source is not None else []
    return sources, found


def lay_over(shipped: Sequence[Source], site: Sequence[Source]) -> tuple[list[Source], list[Problem]]:
    """Return the policy files that count, by name; a site's file replaces the shipped one of its name."""
    found: list[Problem] = []
    files = {source.path.name: source for source in shipped}
    for source in site:
        below = files.get(source.path.name)
        files[source.path.name] = source
        if below is None or source.replaces == below.digest:
            continue
        if source.replaces is None and is_silence(source):
            continue  # an empty file says "never", whatever is shipped later
        found.append(Problem.of("hides-shipped", source.shown, is_warning=True, other=below.path, digest=below.digest))
    return [files[name] for name in sorted(files)], found


def is_silence(source: Source) -> bool:
    """Return whether the file holds nothing but comments and blank lines."""
    lines = source.data.splitlines()
    return all(not line.strip() or line.strip().startswith(b"#") for line in lines)


def merge(documents: Sequence[Document]) -> Document:
    """Return the documents as one: maps are merged, the later wins, lists are replaced."""
    merged = Document(file=documents[0].file if documents else "bandog.yaml", value={})
    for document in documents:
        if isinstance(document.value, dict):
            _merge_map(merged, document, ())
            merged.values.setdefault((), document.where(()))
    return merged


def _merge_map(into: Document, other: Document, path: problems.Path) -> None:
    target = _at(into, path)
    for key, value in _at(other, path).items():
        here = (*path, key)
        into.keys[here] = other.where(here, key=True)
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge_map(into, other, here)
            continue
        target[key] = value
        for table, source in ((into.values, other.values), (into.keys, other.keys)):
            for old in [one for one in table if one[: len(here)] == here]:
                del table[old]
            table.update({one: place for one, place in source.items() if one[: len(here)] == here})


def _at(document: Document, path: problems.Path) -> dict[str, object]:
    value = document.value
    for step in path:
        value = value[step]
    assert isinstance(value, dict)
    return value


def read_documents(sources: Sequence[Source]) -> Iterator[tuple[Source, Document, list[Problem]]]:
    """Parse each source in turn."""
    for source in sources:
        document, found = read_document(source.data, source.shown)
        yield source, document, found
