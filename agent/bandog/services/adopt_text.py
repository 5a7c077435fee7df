"""The text of a unit as its files say it: settings in order over fragment and drop-ins. Pure.

`systemctl show` tells what systemd made of a command line, not how it was written; to change one word of it the
text itself is needed. Source: systemd.syntax(7), and podman-systemd.unit(5), whose files have the same form.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One assignment: `[section] key=value` of `file`, lines that a backslash joins in one."""

    section: str
    key: str
    value: str
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitText:
    """All settings of a unit in the order in which they count."""

    settings: tuple[Setting, ...] = ()

    def values(self, section: str, key: str) -> tuple[str, ...]:
        """Return the values of a setting that adds up; an empty one clears what stood before."""
        found: list[str] = []
        for one in self.settings:
            if one.section == section and one.key == key:
                found = [*found, one.value] if one.value else []
        return tuple(found)

    def last(self, section: str, key: str) -> str:
        """Return the value of a setting of which the last one counts, "" without."""
        found = [one.value for one in self.settings if one.section == section and one.key == key]
        return found[-1] if found else ""

    def files_with(self, section: str, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the files that set one of `keys` in a section, in order."""
        wanted = set(keys)
        return tuple(dict.fromkeys(one.file for one in self.settings if one.section == section and one.key in wanted))

    def environment(self, section: str = "Service") -> dict[str, str]:
        """Return what `Environment=` of a section sets."""
        words = (word for value in self.values(section, "Environment") for word in split(value))
        pairs = (word.partition("=") for word in words)
        return {name: value for name, equals, value in pairs if equals}


def parse(text: str, file: str = "") -> tuple[Setting, ...]:
    """Return the settings of one file. What is no setting is passed over, as systemd does."""
    section, found = "", []
    for line in _logical(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if equals and section:
            found.append(Setting(section=section, key=key.strip(), value=value.strip(), file=file))
    return tuple(found)


def _logical(text: str) -> Iterator[str]:
    """Yield lines without comments; a backslash at the end joins with the next one, comments between them drop out."""
    parts: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not parts):
            continue
        if line.endswith("\\"):
            parts.append(line[:-1].rstrip())
            continue
        yield " ".join([*parts, line])
        parts.clear()
    if parts:
        yield " ".join(parts)


def split(value: str) -> list[str]:
    """Return the words of a value, quotes taken off; at blanks only where the quotes do not match."""
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def expand(word: str, env: dict[str, str]) -> str:
    """Return a word with the variables in it that are known."""
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[0]), word)
