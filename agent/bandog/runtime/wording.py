"""Words that people get: kinds and subjects as people say them, hostile text as one harmless line.

Names and log text come from processes that nobody has vetted. They are quoted on one line, without
control characters, and without anything that a chat or mail program would act on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from ..domain.subjects import id_of, type_of

_FACT = 160
_NEUTRAL = str.maketrans({"@": "＠", "<": "‹", ">": "›", "`": "'", "[": "(", "]": ")"})
_LINK = re.compile(r"(?i)\b(h)tt(ps?://)")
_SPACE = re.compile(r"\s+")

_WORDS = {
    "nvidia.xid": "Xid {xid}",
    "nvidia.sxid": "SXid {sxid}",
    "task.hung": "task hung in the kernel",
    "gpu.lost": "GPU lost",
    "gpu.missing": "GPU missing",
    "gpu.recovery-needed": "GPU asks for {recovery}",
    "gpu.row-remap-pending": "GPU memory rows wait for a reset",
    "gpu.row-remap-failed": "GPU memory row not remapped",
    "gpu.ecc-uncorrected": "uncorrected GPU memory errors",
    "gpu.throttled": "GPU throttled",
    "gpu.link-degraded": "GPU link degraded",
    "gpu.driver-hung": "GPU driver hung",
    "gpu.driver-mismatch": "GPU driver and library differ",
    "memory.corrected": "corrected memory errors",
    "memory.uncorrected": "uncorrected memory error",
    "service.down": "service down",
    "service.stalled": "service stalled",
    "process.oom-killed": "process killed for memory",
    "filesystem.read-only": "file system read-only",
}
PAPERS = {"serial": "serial", "part_number": "part number", "uuid": "UUID"}
"""Facts by which a manufacturer knows a card, in words."""


def plain(text: object, limit: int = _FACT) -> str:
    """Return hostile text as one harmless line: nothing to click, mention, format or overwrite with."""
    whole = _SPACE.sub(" ", str(text)[: limit * 4]).strip()
    if not (whole.isascii() and whole.isprintable()):
        whole = "".join(one if _visible(one) else f"\\u{ord(one):04x}" for one in whole)
    shown = _LINK.sub(r"\1xx\2", whole).translate(_NEUTRAL)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _visible(character: str) -> bool:
    # C: controls, direction overrides, surrogates, unassigned; Zl and Zp: line separators.
    category = unicodedata.category(character)
    return not category.startswith("C") and category not in ("Zl", "Zp")


def kind_words(kind: str, facts: Mapping[str, Any]) -> str:
    """Return a kind in people's words, `Xid 94` for `nvidia.xid`."""
    shape = _WORDS.get(kind)
    if shape is None:
        return plain(kind.replace(".", " ").replace("-", " "))
    try:
        return plain(shape.format_map(facts), 60)
    except KeyError:
        return kind


def subject_words(subject: str) -> str:
    """Return a subject in people's words, `gpu 0000:e5:00.0` for `gpu:0000:e5:00.0`."""
    name = id_of(subject)
    return plain(f"{type_of(subject)} {name}" if name else subject, 60)


def card_lines(subject: str, facts: Mapping[str, Any]) -> list[str]:
    """Return a card's papers and history, as a manufacturer asks for them; [] where a finding carries none."""
    papers = [f"{words} {plain(facts[name], 80)}" for name, words in PAPERS.items() if facts.get(name)]
    if type_of(subject) != "gpu" or not papers:
        return []
    lines = [f"Card: {', '.join(papers)}, slot {plain(id_of(subject), 40)}"]
    if facts.get("history"):
        lines.append(f"History: {plain(facts['history'], 300)}")
    return lines
