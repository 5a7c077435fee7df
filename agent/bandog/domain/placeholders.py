"""The `$names` in a step's arguments: found by `check`, replaced when a request is made.

There is no expression language on purpose; a rule that needs one is a detector (DESIGN section 9).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

BUILT_IN = ("subject", "kind", "host", "service", "unit", "incident")
"""Names that every finding has, beside its facts."""

_NAME = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


# Where `str.splitlines` breaks.
_BREAK = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def names_in(value: Any) -> Iterator[str]:
    """Yield each `$name` (or `${name}`) in a string, or in the strings of a list or mapping."""
    if isinstance(value, str):
        for match in _NAME.finditer(value):
            name = match.group(2) or match.group(3)
            if name:
                yield name
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from names_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)


def expand(value: Any, names: Mapping[str, Any]) -> Any:
    """Return `value` with each `$name` replaced; an unknown one becomes "", `$$` a dollar sign.

    Lists and mappings are walked; whatever holds no text comes back as it is. What is put in is
    never looked at again, so that a fact that reads `$host` stays text.
    """
    if isinstance(value, str):
        return _NAME.sub(lambda match: _replacement(match, names), value) if "$" in value else value
    if isinstance(value, Mapping):
        return {key: expand(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(expand(item, names) for item in value)
    return value


def _replacement(match: re.Match[str], names: Mapping[str, Any]) -> str:
    if match.group(1):
        return "$"
    return _text(names.get(match.group(2) or match.group(3)))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value)
    # A process chooses its name: it must not begin a line of its own in what people read.
    return _BREAK.sub(" ", str(value))
