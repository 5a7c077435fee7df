"""A gap in the kernel's log, and how the journal's entries fit into it.

The entries between the gap's two neighbours are the missing ones; the neighbours are recognised by
kernel stamp and text. Equal stamps occur, so the entries get record numbers only if their count
equals the gap's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .bookmark import Neighbour, text_digest
from .journal import KernelEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records `first` to `last` were never read. `before` is None when nothing is known of what came before.

    `live` says whether they are past the bookmark or came after our start.
    """

    first: int
    last: int
    before: Neighbour | None
    after: Neighbour
    live: bool = False

    @property
    def count(self) -> int:
        """How many records are missing."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What the journal knows of one gap. `found` counts entries of any facility; `wanted` are the kernel's own.

    `numbers` are the record numbers of `wanted`, empty when they cannot be told. `whole` is False
    while the journal has not yet reached the end of the gap.
    """

    found: int
    wanted: tuple[KernelEntry, ...]
    numbers: tuple[int, ...]
    whole: bool


def between(entries: Sequence[KernelEntry], gap: Gap, *, wants: Callable[[KernelEntry], bool]) -> Missing:
    """Return the entries of the gap out of the journal's, which begin somewhere before it.

    Only entries of the kernel that `wants` takes are kept; the others count.
    """
    start, end = _edges(entries, gap)
    if start is not None or gap.before is None:
        missing = list(entries[start + 1 if start is not None else 0 : end])
    else:  # journald missed the neighbour too, or it was stored before our text of it was known
        missing = [entry for entry in entries[:end] if entry.usec > gap.before.usec]
    if end is None:
        missing = [entry for entry in missing if entry.usec <= gap.after.usec]
    if start is None:
        missing = missing[-gap.count :]
    exact = len(missing) == gap.count and start is not None and end is not None
    wanted = [(number, entry) for number, entry in enumerate(missing, gap.first) if entry.kernel and wants(entry)]
    return Missing(
        found=min(len(missing), gap.count),
        wanted=tuple(entry for _, entry in wanted),
        numbers=tuple(number for number, _ in wanted) if exact else (),
        whole=end is not None,
    )


def _edges(entries: Sequence[KernelEntry], gap: Gap) -> tuple[int | None, int | None]:
    """Return where the gap's neighbours stand; of equal ones those whose distance is the gap's."""
    starts = [place for place, entry in enumerate(entries) if _is(entry, gap.before)]
    ends = [place for place, entry in enumerate(entries) if _is(entry, gap.after)]
    for start in starts:
        if start + gap.count + 1 in ends:
            return start, start + gap.count + 1
    first = starts[0] if starts else None
    return first, next((end for end in ends if first is None or end > first), None)


def _is(entry: KernelEntry, neighbour: Neighbour | None) -> bool:
    if neighbour is None or entry.usec != neighbour.usec:
        return False
    return text_digest(entry.text) == neighbour.digest
