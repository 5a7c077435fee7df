"""Which GPU profiles a service can have: the size that it runs with, and smaller ones that its model allows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .adopt_command import Command
from .adopt_model import Model

_FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A profile; `doubt` says why it is only written as a comment, "" where nothing speaks against it."""

    count: int
    size: int
    doubt: str = ""


def propose(command: Command, size: int, model: Model | None, memory: int | None) -> tuple[Proposal, ...]:
    """Return the profiles, best first: `size` as it is, then every smaller one that the model can be split over.

    `memory` is the smallest card's in bytes, None where it is not known; what it cannot be measured by is a comment.
    """
    best = Proposal(count=size * command.others, size=size)
    return (best, *(_judged(command, one, model, memory) for one in _smaller(size, model)))


def _smaller(size: int, model: Model | None) -> list[int]:
    sizes = range(size - 1, 0, -1)
    if model is not None and model.heads:
        return [one for one in sizes if model.takes(one)]
    # A model that runs split by 4 can be split by 2: whatever 4 divides, 2 divides.
    return [one for one in sizes if size % one == 0]


def _judged(command: Command, size: int, model: Model | None, memory: int | None) -> Proposal:
    count = size * command.others
    if model is None:
        return Proposal(count=count, size=size, doubt="the model's config.json was not found: does it fit?")
    cache = command.option("--kv-cache-dtype", "--kv-cache-quantization")
    needs = model.needs(
        size,
        stages=command.others if command.option("-pp", "--pp-size", "--pipeline-parallel-size") else 1,
        context=command.context,
        kv_bytes=1 if cache.startswith(_FP8) else 2,
    )
    if needs is None:
        return Proposal(count=count, size=size, doubt="what it needs of a GPU's memory is not known: does it fit?")
    told = f"about {_gib(needs)} GiB a GPU with one full context"
    if memory is None:
        return Proposal(count=count, size=size, doubt=f"needs {told}: does it fit?")
    room = int(memory * command.share)
    if needs > room:
        why = f"needs {told}, and has {_gib(room)}; a shorter context or a smaller model would fit"
        return Proposal(count=count, size=size, doubt=why)
    return Proposal(count=count, size=size)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.0f}"
