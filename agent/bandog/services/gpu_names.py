"""What to say to a person who named a card that this host does not have."""

from __future__ import annotations

from collections.abc import Iterable

from ..domain.gpus import KnownGpu


def unknown(name: str, known: Iterable[KnownGpu]) -> str:
    """Return one line for a name that is no card of this host, with the nearest ones."""
    some = list(known)
    text = "".join(one if one.isprintable() else "?" for one in name.strip()[:80])
    if text.isdecimal():
        return f"{text} is an index, and indices shift when a card is missing; give its PCI address or UUID"
    if not some:
        return f"there is no GPU {text}: none has been seen on this host yet"
    wanted = text.lower()
    near = sorted(some, key=lambda one: -max(_alike(wanted, one.slot), _alike(wanted, one.uuid.lower())))
    names = ", ".join(f"{one.slot} ({one.uuid})" for one in near[:3])
    return f"there is no GPU {text}; nearest: {names}"


def _alike(a: str, b: str) -> float:
    from difflib import SequenceMatcher  # for a slip only; an agent that hears of none does without

    return SequenceMatcher(None, a, b).ratio()
