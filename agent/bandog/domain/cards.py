"""The life of one card: in use, out, on probation, out for good. Pure steps from one state to the next.

A card that is out comes back only after a reboot and a passed check, or by a person; a person's own exclusion
by that person only. A fault of the memory comes back once: the next one, and any fault during a probation, is
final until a person returns the card. The third exclusion in four weeks makes a lemon, which is final as well.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from .gpus import Exclusion, KnownGpu
from .model import Instant

MEMORY_XIDS = frozenset({48, 64, 94, 95, 171})
"""Uncorrectable ECC, remap or retirement failed, contained, uncontained, additional error (NVIDIA, Xid catalogue)."""
MEMORY_KINDS = frozenset({"gpu.row-remap-failed", "gpu.ecc-uncorrected"})
PROBATION = timedelta(days=7)
SHORT_PROBATION = timedelta(days=1)
"""After a fault that is not of the memory."""
LEMON_COUNT = 3
LEMON_WITHIN = timedelta(weeks=4)
MOST_EXCLUSIONS = 50


def is_fault(one: Exclusion) -> bool:
    """True for an exclusion after a fault, false for a person's own."""
    return bool(one.kind) or one.xid is not None


def is_memory(one: Exclusion) -> bool:
    """True for a fault of the card's memory."""
    return one.xid in MEMORY_XIDS or one.kind in MEMORY_KINDS


def exclude(card: KnownGpu, new: Exclusion, now: Instant) -> KnownGpu:
    """Keep the card out because of `new`, as far as it is not kept out more strictly already.

    One fault seen twice in one boot is one exclusion; one that returns after a reboot, while the card was still
    out, shows that the reboot did not help.
    """
    current = card.exclusion
    if current is not None and current.state == "final":
        return card
    if current is not None and current.state == "out":
        by_person = not is_fault(new) and is_fault(current)
        back = is_memory(new) and is_fault(current) and current.since.boot_id != now.boot_id
        if not (by_person or back):
            return card
        new = replace(new, state="final" if back else "out")
    else:
        new = replace(new, state="final" if _is_final(card, new, now) else "out")
    ended = _ended(card, now)
    kept = (*ended.exclusions, replace(new, since=now))[-MOST_EXCLUSIONS:]
    return replace(ended, exclusions=kept, lemon=card.lemon or (is_fault(new) and _is_lemon(card, now)))


def give_back(card: KnownGpu, by: str, now: Instant) -> KnownGpu:
    """Return the card to plain use on a person's word; it starts anew. Unchanged where nothing is in force."""
    return card if card.exclusion is None else _ended(card, now, by)


def pass_check(card: KnownGpu, now: Instant) -> KnownGpu:
    """Put the card on probation after it passed the boot check; unchanged unless `awaits_check`."""
    current = card.exclusion
    if current is None or not awaits_check(card, now):
        return card
    back = replace(current, state="probation", until=now.plus(_span(current)))
    return replace(card, exclusions=(*card.exclusions[:-1], back))


def awaits_check(card: KnownGpu, now: Instant) -> bool:
    """True for a card that a fault of an earlier boot keeps out and that a passed check brings back."""
    current = card.exclusion
    return current is not None and current.state == "out" and is_fault(current) and current.since.boot_id != now.boot_id


def settle(card: KnownGpu, now: Instant) -> KnownGpu:
    """End a probation whose time has provably passed."""
    current = card.exclusion
    if current is None or current.state != "probation" or current.until is None:
        return card
    began = current.until.plus(-_span(current))
    return _ended(card, now) if now.since(began) >= _span(current) else card


def _is_final(card: KnownGpu, new: Exclusion, now: Instant) -> bool:
    if not is_fault(new):
        return False
    if card.exclusion is not None or _is_lemon(card, now):  # on probation, as all else is answered before
        return True
    return is_memory(new) and any(is_memory(one) and one.until is not None for one in _since_return(card))


def _is_lemon(card: KnownGpu, now: Instant) -> bool:
    """True if one exclusion more, now, makes a lemon."""
    recent = [one for one in card.exclusions if is_fault(one) and now.since(one.since) <= LEMON_WITHIN]
    return len(recent) + 1 >= LEMON_COUNT


def _since_return(card: KnownGpu) -> tuple[Exclusion, ...]:
    """Return the exclusions after the last one that a person ended."""
    returned = [place for place, one in enumerate(card.exclusions) if one.ended_by]
    return card.exclusions[returned[-1] + 1 :] if returned else card.exclusions


def _span(one: Exclusion) -> timedelta:
    return PROBATION if is_memory(one) else SHORT_PROBATION


def _ended(card: KnownGpu, now: Instant, by: str = "") -> KnownGpu:
    current = card.exclusion
    if current is None:
        return card
    last = replace(current, state="ended", ended=now, ended_by=by)
    return replace(card, exclusions=(*card.exclusions[:-1], last))
