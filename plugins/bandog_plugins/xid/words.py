"""What a finding means, in words for people, from the catalogue's descriptions."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from bandog import Finding

from .losses import MEANINGS

# The owner of these is whoever made the driver call at that moment, often nvidia-smi or an exporter.
MESSENGER_CODES = frozenset({119, 120, 143, 154})


@functools.cache
def _words() -> dict[str, Any]:
    text = resources.files("bandog_plugins").joinpath("data", "xid_words.json").read_text(encoding="utf-8")
    words: dict[str, Any] = json.loads(text)
    return words


def meaning(finding: Finding, *, version_matters: bool) -> str:
    """Return a few sentences on `finding`; `version_matters`: its code was renumbered and the driver is unknown."""
    return " ".join(one for one in _sentences(finding, version_matters) if one)


def _sentences(finding: Finding, version_matters: bool) -> Iterator[str]:
    facts = finding.facts
    reason = facts.get("reason")
    if isinstance(reason, str):
        yield MEANINGS.get(reason, "")
    table = "xids" if "xid" in facts else "sxids"
    code = facts.get("xid", facts.get("sxid"))
    if code is not None:
        description, note = _words()[table].get(str(code), ("No public description of this code is known.", ""))
        yield description.rstrip(".")[:1].upper() + description.rstrip(".")[1:] + "."
        if code != 154:  # its note explains the form of the line, which is decoded already
            yield note
    if "recovery_action" in facts:
        label = _words()["recovery"].get(str(facts["recovery_action"]), "unknown")
        yield f"The driver now asks for: {label}."
    if isinstance(facts.get("cause"), str) and table == "xids":
        yield f"Here: {facts['cause']}."
    if code in MESSENGER_CODES and table == "xids" and "pid" in facts:
        yield "The pid is that of the process whose call was being served, not of a culprit."
    if version_matters:
        yield "This number meant something else in older drivers; the driver's version is not known here."
    action = facts.get("action")
    if isinstance(action, str) and action in _words()["actions"]:
        yield f"The catalogue's step: {_words()['actions'][action]}."
    if facts.get("glued"):
        yield "The text does not stand at the start of its record, where the driver puts it: it may be forged."
