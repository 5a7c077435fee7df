"""A mistake in the configuration, with its place and the way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .texts import TEXTS

Path: TypeAlias = tuple[str | int, ...]
# An address of people holds a password or a token, wherever in the file it was put by mistake.
_ADDRESS = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{1,30})://([^\s\"']*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake. `line` and `column` count from 1, 0 where the file as a whole is meant.

    `path` is the place inside the document (`steps[1].do`), `code` a key of `TEXTS`.
    """

    file: str
    message: str
    code: str
    line: int = 0
    column: int = 0
    path: str = ""
    is_warning: bool = False

    @classmethod
    def of(
        cls,
        code: str,
        file: str,
        *,
        place: tuple[int, int] = (0, 0),
        path: Path = (),
        is_warning: bool = False,
        **values: Any,
    ) -> Problem:
        """Build the problem `code`, its text filled with `values`."""
        return cls(
            file=file,
            message=text(code, **values),
            code=code,
            line=place[0],
            column=place[1],
            path=_masked(format_path(path)),
            is_warning=is_warning,
        )

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        kind = "warning: " if self.is_warning else ""
        path = f"{self.path}: " if self.path else ""
        return f"{place}: {kind}{path}{self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as JSON types, for `check --json`."""
        return {
            "file": self.file,
            "line": self.line or None,
            "column": self.column or None,
            "path": self.path or None,
            "severity": "warning" if self.is_warning else "error",
            "code": self.code,
            "message": self.message,
        }


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems without doubles, those of one file together and from top to bottom."""
    found = list(dict.fromkeys(problems))
    files = {problem.file: number for number, problem in reversed(list(enumerate(found)))}
    return tuple(sorted(found, key=lambda one: (files[one.file], one.line, one.column)))


def text(code: str, **values: Any) -> str:
    """Return the text of `code`; a `hint` that is not given is empty."""
    return TEXTS[code].format(**{"hint": "", **{name: _shown(value) for name, value in values.items()}})


def _shown(value: Any) -> str:
    shown = _masked(str(value))
    return shown if len(shown) <= 300 else shown[:297] + "..."


def _masked(shown: str) -> str:
    """Problems go to logs, the record and chats: of an address only the scheme is left, of http the host too."""

    def mask(found: re.Match[str]) -> str:
        scheme, rest = found[1], found[2]
        if scheme.lower() not in ("http", "https"):
            return f"{scheme}://***"
        host, slash, path = rest.rpartition("@")[2].partition("/")
        return f"{scheme}://{host}{slash}{'***' if path else ''}"

    return _ADDRESS.sub(mask, shown)


def format_path(path: Path) -> str:
    """Return `("steps", 1, "do")` as people write it: `steps[1].do`."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part}" if out else part
    return out


def quote(value: Any) -> str:
    """Return `value` as it may be shown on one line: text in quotes, anything else as YAML spells it."""
    if isinstance(value, str):
        shown = _masked(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        printable = "".join(one if one.isprintable() else repr(one)[1:-1] for one in shown)
        return '"' + printable.replace('"', '\\"') + '"'
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    return str(value)


def hint(name: str, known: Iterable[str]) -> str:
    """Return the way out for an unknown `name`: the nearest of `known`, or all of them."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    if not names:
        return "; none is known"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"; known: {shown}"
