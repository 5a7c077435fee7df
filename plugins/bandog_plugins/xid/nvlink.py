"""NVLink messages: the registers of 74 and 136 (to Hopper), the words of 144 to 150 (Blackwell).

Sources: NVIDIA's WORKFLOW_NVLINK_ERR for the register bits and its NVLink 5 table for the words, both
as compiled in the catalogue.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .catalog import Catalog, NvlinkRow, Version

LINK_CODES = frozenset({74, 136, *range(144, 151), 155})
NVLINK5_CODES = frozenset(range(144, 151))

_REGISTERS = re.compile(
    r"NVLink: (?P<text>.*?)\b(?P<many>links?) (?P<link>\w+)\s*(?:\((?P<regs>0x[0-9a-f]+(?:, ?0x[0-9a-f]+)*)\))?", re.S
)
_WORDS = re.compile(
    r"(?P<unit>\S.*?)\s+(?P<severity>Fatal|Nonfatal)\s+XC(?P<contain>\d)\s+i(?P<injected>\d)\s+Link\s+"
    r"(?P<link>-?\d{1,4})\s*(?:\((?P<words>0x[0-9a-f]+(?:[ ,]+0x[0-9a-f]+)*)|:\s*(?P<text>.*))",
    re.S,
)
_HEX = re.compile(r"0x[0-9a-f]+")

# Units whose name alone tells the layout of the words, whatever driver this host has (NVIDIA's table).
_UNITS_V1 = frozenset({"netir_link_evt", "tlw_rx", "tlw_tx", "nvlpw_ctrl", "netir"})
_UNITS_V2 = frozenset(
    {"netir_link_down", "tlw_rx_pipe0", "tlw_rx_pipe1", "tlw_tx_pipe0", "tlw_tx_pipe1", "nvlpw", "netir_int"}
)
_FIRST_V2_BRANCH = 575  # the driver branch from which the words have the second layout

# Weakest to strongest; several bits of one message take the strongest (our own rule).
_STRENGTH = ("none", "notify", "contact_support", "inspect_hardware", "reset_gpu", "reset_fabric", "reboot")


class Decoded(NamedTuple):
    """What an NVLink message says. `action` is None where only the code's own entry can tell."""

    link: int | None = None
    unit: str | None = None
    fatal: bool | None = None
    error_status: str | None = None
    reason: int | None = None
    action: str | None = None
    severity: str | None = None
    meaning: str = ""


def stronger(one: str, other: str) -> str:
    """Return the stronger of two actions of this page's vocabulary."""
    rank = {action: place for place, action in enumerate(_STRENGTH)}
    return one if rank.get(one, 0) >= rank.get(other, 0) else other


def decode_registers(catalog: Catalog, message: str) -> Decoded:
    """Decode the seven registers of 74 and 136; they are counted from 1."""
    match = _REGISTERS.match(message)
    if match is None:
        return Decoded()
    single = match["many"] == "link" and match["link"].isdigit() and len(match["link"]) <= 4
    link = int(match["link"]) if single else None
    if not match["regs"]:
        return Decoded(link=link)
    found: list[tuple[str, str]] = []
    for number, register in enumerate(_HEX.findall(match["regs"]), start=1):
        value = int(register[:18], 16)
        for bit in range(64):
            if value >> bit & 1:
                found.append(catalog.nvlink4.get((number, bit), ("contact_support", "a bit that NVIDIA does not list")))
    return Decoded(link=link, action=_of_bits(found), meaning="; ".join(dict.fromkeys(text for _, text in found)))


def _of_bits(found: list[tuple[str, str]]) -> str | None:
    if not found:
        return None
    deciding = [action for action, _ in found if action not in ("follow_primary", "none")]
    if not deciding:  # secondary bits alone are to be reported, ignorable ones alone are nothing
        return "contact_support" if any(action == "follow_primary" for action, _ in found) else "none"
    strongest = "none"
    for action in deciding:
        strongest = stronger(strongest, action)
    return strongest


def decode_words(catalog: Catalog, code: int, message: str, version: Version | None) -> Decoded:
    """Decode unit, severity and words of 144 to 150, or the text form of 155."""
    match = _WORDS.match(message)
    if match is None:
        return Decoded()
    fatal = match["severity"] == "Fatal"
    link = int(match["link"])
    found = Decoded(link=None if link < 0 else link, unit=match["unit"].strip(), fatal=fatal)
    if not match["words"] or code not in NVLINK5_CODES:
        return found
    words = [int(word[:18], 16) for word in _HEX.findall(match["words"])]
    status = words[1] if len(words) > 1 else None
    action, severity = _of_words(catalog, code, words[0], status, _layouts(match["unit"], version), fatal)
    return found._replace(
        error_status=None if status is None else f"0x{status:08x}",
        reason=words[0] >> 20 & 0x3F,
        action=action,
        severity=severity,
    )


def _layouts(unit: str, version: Version | None) -> tuple[str, ...]:
    name = unit.strip().lower()
    if name in _UNITS_V1:
        return ("v1",)
    if name in _UNITS_V2:
        return ("v2",)
    if version is not None:
        return ("v2",) if version.branch >= _FIRST_V2_BRANCH else ("v1",)
    return ("v1", "v2")  # no word fits a row of each with different actions


def _of_words(
    catalog: Catalog, code: int, info: int, status: int | None, layouts: tuple[str, ...], fatal: bool
) -> tuple[str, str]:
    for layout in layouts:
        for row in catalog.nvlink5(code):
            if row.status is not None and status not in row.status:
                continue
            action = _fits(row, layout, info)
            if action is not None:
                return action, _severity(row, action)
    return ("reset_gpu", "fatal") if fatal else ("notify", "warning")


def _fits(row: NvlinkRow, layout: str, info: int) -> str | None:
    usual, other = (row.v1, row.alt_v1) if layout == "v1" else (row.v2, row.alt_v2)
    if usual is not None and info & usual[0] == usual[1]:
        return row.action
    if other is not None and info & other[0] == other[1]:
        return row.alt_action
    return None


def _severity(row: NvlinkRow, action: str) -> str:
    if action == "reset_gpu":
        return "fatal"
    if action == "follow_primary":
        return "error"
    return "info" if row.ignored else "warning"
