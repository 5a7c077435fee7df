"""Reads YAML 1.2 core from bytes into plain values, and remembers where each of them stood.

Narrower than YAML on purpose (DESIGN section 9): only `true` and `false`, decimal numbers and null
are anything but text, so that `0000:17:00.0`, `12:30`, `017`, `off`, `2026-11-30`, `0x10` and
`1_000` stay what the operator wrote; anchors, aliases, tags, directives, duplicate keys, tabs and
a second document are errors. It works on the events of PyYAML's parser and never on its
constructors, so no byte sequence builds an object or raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from .problems import Path, Problem

LIMIT = 1 << 20
DEPTH = 50
Place: TypeAlias = tuple[int, int]

_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z")  # 18 digits: what every JSON reader keeps exact
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}(?:[eE][-+]?[0-9]{1,2})?\Z")
# All that YAML calls not printable, the line breaks that only YAML 1.1 knows, and surrogates.
_CONTROL = re.compile(r"[^\n\r\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_NULLS = {"", "~", "null"}


@dataclass(slots=True)
class Document:
    """One file, read. `value` is None for a file of nothing but comments.

    `keys` and `values` map the path of a value to the file and place of its key and of itself.
    """

    file: str
    value: Any = None
    keys: dict[Path, tuple[str, Place]] = field(default_factory=dict)
    values: dict[Path, tuple[str, Place]] = field(default_factory=dict)

    def has_below(self, path: Path) -> bool:
        """Return whether the map or list at `path` holds anything."""
        return any(len(one) > len(path) and one[: len(path)] == path for one in self.values)

    def where(self, path: Path, *, key: bool = False) -> tuple[str, Place]:
        """Return file and place of the value (or key) at `path`, or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            table = self.keys if key and end == len(path) and path[:end] in self.keys else self.values
            if path[:end] in table:
                return table[path[:end]]
        return self.file, (1, 1)


def read_document(data: bytes, file: str) -> tuple[Document, list[Problem]]:
    """Read one document. Problems are reported under the name `file`; with any, `value` is None.

    Never raises, whatever the bytes.
    """
    document = Document(file=file)
    text, problem = _decode(data, file)
    if problem is not None:
        return document, [problem]
    reader = _Reader(document)
    try:
        for event in yaml.parse(text, Loader=_PARSER):
            reader.take(event)
    except _Stop:
        pass
    except yaml.YAMLError as error:
        reader.problems.append(_syntax(error, file))
    if reader.problems:
        document.value = None
    return document, reader.problems


def _decode(data: bytes, file: str) -> tuple[str, Problem | None]:
    if len(data) > LIMIT:
        return "", Problem.of("too-large", file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        return "", Problem.of("not-utf8", file, place=_place(before), byte=f"{data[error.start]:02x}")
    text = text.removeprefix("\ufeff")
    found = _CONTROL.search(text)
    if found is not None:
        char = f"{ord(found[0]):04X}"
        return "", Problem.of("control", file, place=_place(text[: found.start()]), char=char)
    tab = text.find("\t")
    if tab >= 0:
        return "", Problem.of("tab", file, place=_place(text[:tab]))
    return text, None


def _place(before: str) -> Place:
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return len(lines), len(lines[-1]) + 1


def _syntax(error: yaml.YAMLError, file: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    why = str(getattr(error, "problem", None) or "it cannot be parsed")
    context = getattr(error, "context", None)
    place = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    if why.startswith("mapping values are not allowed"):
        return Problem.of("colon", file, place=place)
    if "nesting depth" in why:  # libyaml's own limit, met while it looks ahead
        return Problem.of("nesting", file, place=place)
    return Problem.of("yaml", file, place=place, why=f"{context}, {why}" if context else why)


class _Stop(Exception):
    """The rest of the document cannot be read sensibly."""


@dataclass(slots=True)
class _Open:
    """A list or map that is being read."""

    path: Path
    into: Any
    key: str | None = None
    seen: dict[str, int] = field(default_factory=dict)


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.stack: list[_Open] = []
        self.documents = 0

    def take(self, event: yaml.Event) -> None:
        mark: Any = event.start_mark
        place = (mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            self._document(event, place)
        elif isinstance(event, yaml.AliasEvent):
            self._complain("alias", place)
            self._value(None, place)
        elif isinstance(event, yaml.ScalarEvent):
            self._properties(event, place)
            self._scalar(event, place)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._properties(event, place)
            self._begin([] if isinstance(event, yaml.SequenceStartEvent) else {}, place)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()

    def _document(self, event: yaml.DocumentStartEvent, place: Place) -> None:
        self.documents += 1
        if self.documents > 1:
            self._complain("documents", place)
            raise _Stop
        if event.version or event.tags:
            self._complain("directive", place)

    def _properties(self, event: Any, place: Place) -> None:
        if event.anchor is not None:
            self._complain("anchor", place)
        if event.tag is not None:
            self._complain("tag", place)

    def _scalar(self, event: yaml.ScalarEvent, place: Place) -> None:
        text = event.value
        found = _CONTROL.search(text)  # an escape like "\\x00" can bring in what the file itself may not hold
        if found is not None:
            self._complain("control", place, char=f"{ord(found[0]):04X}")
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.into, dict) and top.key is None:
            self._key(top, text, place)
        else:
            self._value(_resolve(text) if event.implicit[0] else text, place)

    def _key(self, top: _Open, key: str, place: Place) -> None:
        if key in top.seen:
            self._complain("duplicate-key", place, key=key, line=top.seen[key])
        top.seen.setdefault(key, place[0])
        top.key = key
        self.document.keys[(*top.path, key)] = (self.document.file, place)

    def _begin(self, value: Any, place: Place) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.into, dict) and top.key is None:
            self._complain("complex-key", place)
            raise _Stop
        if len(self.stack) >= DEPTH:
            self._complain("nesting", place)
            raise _Stop
        self.stack.append(_Open(self._value(value, place), value))

    def _value(self, value: Any, place: Place) -> Path:
        if not self.stack:
            self.document.value = value
            path: Path = ()
        else:
            top = self.stack[-1]
            if isinstance(top.into, list):
                path = (*top.path, len(top.into))
                top.into.append(value)
            else:
                key, top.key = top.key or "", None
                path = (*top.path, key)
                top.into[key] = value
        self.document.values[path] = (self.document.file, place)
        return path

    def _complain(self, code: str, place: Place, **values: Any) -> None:
        self.problems.append(Problem.of(code, self.document.file, place=place, **values))


def _resolve(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text
