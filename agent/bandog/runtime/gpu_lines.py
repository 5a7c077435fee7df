"""GPUs in words and as JSON values, for `bandog status`, `bandog gpu` and whoever needs a card's papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..domain import gpu_history, subjects
from ..domain.codec import to_json
from ..domain.gpus import Exclusion, GpuEvent, GpuLook, KnownGpu, Look
from ..services.inventory import unfit


def gpu_lines(
    known: Iterable[KnownGpu],
    look: Look | None,
    *,
    services: Callable[[str], Sequence[str]] = lambda address: (),
    history: Callable[[str], Iterable[GpuEvent]] = lambda uuid: (),
) -> list[dict[str, Any]]:
    """Return one line a card in PCI order: those known, and those in the look that do not tell their UUID."""
    seen = {gpu.uuid: gpu for gpu in look.gpus if gpu.uuid} if look is not None else {}
    mute = {gpu.address: gpu for gpu in look.gpus if not gpu.uuid} if look is not None else {}
    lines = []
    for card in known:
        gpu = seen.get(card.uuid) or (mute.pop(card.slot, None) if card.expected else None)
        line = _line(card, gpu, look)
        if gpu is not None or card.expected:
            line["services"] = list(services(card.slot))
        line["history"] = gpu_history.line(history(card.uuid))
        lines.append(line)
    for gpu in mute.values():
        lines.append({**_EMPTY, "address": gpu.address, "present": True, "health": health(None, gpu, look)})
    return sorted(lines, key=lambda one: subjects.pci_order(one["address"]))


_EMPTY: dict[str, Any] = {
    "address": "",
    "uuid": "",
    "name": "",
    "serial": "",
    "part_number": "",
    "vbios": "",
    "present": False,
    "expected": True,
    "usable": False,
    "health": "",
    "services": [],
    "exclusion": None,
    "lemon": False,
    "first_seen": None,
    "last_seen": None,
    "history": "",
}


def _line(card: KnownGpu, gpu: GpuLook | None, look: Look | None) -> dict[str, Any]:
    return {
        **_EMPTY,
        "address": card.slot,
        "uuid": card.uuid,
        "name": card.name,
        "serial": card.serial,
        "part_number": card.part_number,
        "vbios": card.vbios,
        "present": gpu is not None,
        "expected": card.expected,
        "usable": gpu is not None and not unfit(gpu) and card.usable,
        "health": health(card, gpu, look),
        "exclusion": exclusion_line(card.exclusion) if card.exclusion is not None else None,
        "lemon": card.lemon,
        "first_seen": to_json(card.first_seen.utc),
        "last_seen": to_json(card.last_seen.utc),
    }


def exclusion_line(one: Exclusion) -> dict[str, Any]:
    """One exclusion with its author and reason."""
    return {
        "state": one.state,
        "reason": one.reason,
        "by": one.by,
        "since": to_json(one.since.utc),
        "until": to_json(one.until.utc) if one.until is not None else None,
        "ended": to_json(one.ended.utc) if one.ended is not None else None,
        "kind": one.kind,
        "xid": one.xid,
        "incident": one.incident,
    }


def health(card: KnownGpu | None, gpu: GpuLook | None, look: Look | None) -> str:
    """Return how a GPU is, in words; what the driver did not tell is called unknown, never good or bad."""
    if card is not None and not card.expected and gpu is None:
        return "gone"
    if look is None:
        return "unknown: not looked at yet"
    if look.hung:
        return "unknown: the driver does not answer"
    if look.error:
        return f"unknown: {look.error}"
    if gpu is None:
        return "missing"
    bad = unfit(gpu)
    if bad:
        return bad
    remarks = []
    if gpu.remap_pending:
        remarks.append("a remapped row waits for a reset")
    if gpu.ecc_uncorrected:
        remarks.append(f"{gpu.ecc_uncorrected} uncorrected ECC errors")
    return "works" + "".join(f"; {remark}" for remark in remarks)


def exclusion_words(line: dict[str, Any]) -> str:
    """Return an exclusion line as one clause, `kept out since 2026-11-30 by xid-contained-ecc: second Xid 94`."""
    since, until = line["since"][:10], (line["until"] or "")[:16].replace("T", " ")
    told = f"by {line['by']}: {line['reason']}"
    match line["state"]:
        case "probation":
            return f"on probation until {until} UTC; was kept out {told}"
        case "final":
            return f"kept out for good since {since} {told} (bandog gpu return)"
        case "out":
            return f"kept out since {since} {told}"
    return f"was kept out {since} to {(line['ended'] or '')[:10]} {told}"
