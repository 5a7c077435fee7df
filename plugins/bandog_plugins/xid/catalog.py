"""The compiled Xid catalogue: what NVIDIA says of each code, by code and by driver version.

`data/xid_tables.json` is made from `data/xid_catalog.yaml` by `packaging/compile-xid-catalog`.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any, NamedTuple

_VERSION = re.compile(r"(\d{3})\.(\d{1,4})(?:\.(\d{1,4}))?")


class Version(NamedTuple):
    """A driver version such as 570.86.15; the branch is its first number."""

    branch: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Return the version at the start of `text`, or None."""
        match = _VERSION.match(text.strip())
        if match is None:
            return None
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        return f"{self.branch}.{self.minor:02}.{self.patch:02}"


class Entry(NamedTuple):
    """One code. `action` may be `decode_message` or `follow_primary`: then `fallback` stands in.

    `driver` is an SXid's fixed tag, or runtime, mixed, untagged, not_printed, or log for what was a log
    record and no error; "" for an Xid.
    """

    code: int
    mnemonic: str
    class_: str
    severity: str
    usable: str
    action: str
    fallback: str
    driver: str


class NvlinkRow(NamedTuple):
    """One row of the NVLink 5 table: patterns are (mask, value) on the first word, or None."""

    v1: tuple[int, int] | None
    v2: tuple[int, int] | None
    alt_v1: tuple[int, int] | None
    alt_v2: tuple[int, int] | None
    status: tuple[int, ...] | None
    severity: str
    action: str
    alt_action: str
    ignored: bool


class Catalog:
    """All tables. Reading them takes about a millisecond; make one and keep it."""

    def __init__(self) -> None:
        text = resources.files("bandog_plugins").joinpath("data", "xid_tables.json").read_text(encoding="utf-8")
        tables: dict[str, Any] = json.loads(text)
        self._xids: dict[str, dict[str, Any]] = tables["xids"]
        self._sxids: dict[str, dict[str, Any]] = tables["sxids"]
        self._nvlink5: dict[str, list[dict[str, Any]]] = tables["nvlink5"]
        self.recovery: dict[int, str] = {int(value): action for value, action in tables["recovery"].items()}
        self.nvlink4: dict[tuple[int, int], tuple[str, str]] = {
            (int(register), int(bit)): (action, meaning)
            for register, bits in tables["nvlink4"].items()
            for bit, (action, meaning) in bits.items()
        }

    def xid(self, code: int, version: Version | None = None) -> Entry | None:
        """Return the entry for what `code` meant in driver `version` (None: today), or None if unknown."""
        return _find(self._xids, code, version)

    def sxid(self, code: int, version: Version | None = None) -> Entry | None:
        """Return the entry for what the NVSwitch `code` meant in `version`, or None if unknown."""
        return _find(self._sxids, code, version)

    def renumbered(self, code: int, *, switch: bool = False) -> bool:
        """Return whether `code` once meant something else, so that the version matters."""
        return "earlier" in (self._sxids if switch else self._xids).get(str(code), {})

    def nvlink5(self, code: int) -> list[NvlinkRow]:
        """Return the rows of the NVLink 5 table for one of 144 to 150, in the catalogue's order."""
        return [_row(raw) for raw in self._nvlink5.get(str(code), ())]


def _find(entries: dict[str, dict[str, Any]], code: int, version: Version | None) -> Entry | None:
    raw = entries.get(str(code))
    if raw is None:
        return None
    if version is not None:
        for first, last, branches, today in raw.get("earlier", ()):
            if version.branch in branches and _between(first, version, last):
                if today is None:  # it was a log record then, and no error
                    return Entry(code, "", "", "info", "yes", "none", "", "log")
                return _find(entries, today, None)
    return Entry(
        code=code,
        mnemonic="" if raw["mnemonic"] == "unknown" else raw["mnemonic"],
        class_=raw.get("class", ""),
        severity=raw["severity"],
        usable=raw.get("usable", "unknown"),
        action=raw["action"],
        fallback=raw.get("fallback", ""),
        driver=raw.get("driver", ""),
    )


def _between(first: str, version: Version, last: str) -> bool:
    low, high = Version.parse(first), Version.parse(last)
    return low is not None and high is not None and low <= version <= high


def _row(raw: dict[str, Any]) -> NvlinkRow:
    def pattern(key: str) -> tuple[int, int] | None:
        return (raw[key][0], raw[key][1]) if key in raw else None

    return NvlinkRow(
        v1=pattern("v1"),
        v2=pattern("v2"),
        alt_v1=pattern("alt_v1"),
        alt_v2=pattern("alt_v2"),
        status=tuple(raw["status"]) if "status" in raw else None,
        severity=raw["severity"],
        action=raw["action"],
        alt_action=raw.get("alt_action", ""),
        ignored=raw["ignored"],
    )
