"""The journal, read in a process of its own that can be given up: `python -I -m bandog.sources.journal_child`.

A read of the journal waits for the disk with Python's lock held, and a damaged disk can even end the
process (SIGBUS): neither may happen to the daemon. Workers call `kernel_gaps`, `kernel_history` and
`unit_log`; the child answers one JSON question on its standard input with JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..domain.codec import from_json, to_json
from ..host.paths import Paths
from ..host.site import ChildOutcome
from .gap import Gap, Missing, between
from .journal import (
    JournalUnavailable,
    KernelEntry,
    UnitLine,
    kernel_entries,
    match_kernel,
    open_journal,
    unit_lines,
)
from .prefilter import Prefilter

T = TypeVar("T")

# The child takes at most so many entries into memory around one gap: about 100 MiB.
_MOST_ENTRIES = 150_000
# journald's stamp of an entry is later than the kernel's; the clocks' distance is known to about this.
_SLACK = timedelta(seconds=2)
_ANSWER_BYTES = 32 << 20


class Child(Protocol):
    """`Site.child`."""

    def __call__(
        self, argv: Sequence[str], *, deadline: timedelta, stdin: bytes = ..., limit: int = ...
    ) -> ChildOutcome: ...


def kernel_gaps(
    child: Child,
    paths: Paths,
    gaps: Sequence[Gap],
    *,
    boot_id: str,
    shift: timedelta,
    needles: Sequence[bytes] | None,
    deadline: timedelta = timedelta(seconds=20),
) -> tuple[Missing, ...]:
    """Return what the journal has of each gap of this boot; blocks, for workers.

    `shift` is by how much CLOCK_MONOTONIC is ahead of kernel stamps. Of the kernel's own entries only
    those that hold a needle come back, all if `needles` is None. Raises JournalUnavailable.
    """
    question = {
        "ask": "gaps",
        "boot_id": boot_id,
        "shift": shift // timedelta(microseconds=1),
        "gaps": to_json(gaps),
        "needles": None if needles is None else [needle.decode("latin-1") for needle in needles],
    }
    return tuple(_built(Missing, one) for one in _ask(child, paths, question, deadline))


def kernel_history(
    child: Child,
    paths: Paths,
    *,
    boot_id: str,
    since_usec: int = 0,
    until_usec: int | None = None,
    most: int = 1000,
    deadline: timedelta = timedelta(seconds=10),
) -> tuple[KernelEntry, ...]:
    """Return the newest `most` kernel entries of a boot between two kernel stamps; blocks, for workers.

    Raises JournalUnavailable.
    """
    question = {"ask": "history", "boot_id": boot_id, "since": since_usec, "until": until_usec, "most": most}
    return tuple(_built(KernelEntry, one) for one in _ask(child, paths, question, deadline))


def unit_log(
    child: Child,
    paths: Paths,
    unit: str,
    *,
    lines: int = 100,
    boot_id: str | None = None,
    deadline: timedelta = timedelta(seconds=10),
) -> tuple[UnitLine, ...]:
    """Return the last lines of a unit's log, and of PID 1 about it; blocks, for workers.

    Raises JournalUnavailable.
    """
    question = {"ask": "unit", "unit": unit, "lines": lines, "boot_id": boot_id}
    return tuple(_built(UnitLine, one) for one in _ask(child, paths, question, deadline))


def _ask(child: Child, paths: Paths, question: dict[str, Any], deadline: timedelta) -> list[Any]:
    question["root"] = str(paths.root)
    outcome = child(
        [sys.executable, "-I", "-m", "bandog.sources.journal_child"],
        deadline=deadline,
        stdin=json.dumps(question).encode(),
        limit=_ANSWER_BYTES,
    )
    if outcome.stuck or outcome.timed_out:
        raise JournalUnavailable(f"the journal gave no answer within {deadline.total_seconds():g} s")
    try:
        answer = json.loads(outcome.out)
        if isinstance(answer["error"], str):
            raise JournalUnavailable(answer["error"])
        return list(answer["answer"])
    except (ValueError, KeyError, TypeError) as error:
        said = outcome.err.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        raise JournalUnavailable(f"reading the journal ended with {outcome.code}: {said or error}") from error


def _built(kind: type[T], data: Any) -> T:
    try:
        return from_json(kind, data)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalUnavailable(f"the journal's reader answered something else: {error}") from error


# -- in the child ---------------------------------------------------------------------------------


def answer(question: dict[str, Any]) -> Any:
    """Answer one question; raises JournalUnavailable."""
    paths = Paths(root=Path(question["root"]))
    answers: dict[str, Callable[[Paths, dict[str, Any]], Any]] = {
        "gaps": _answer_gaps,
        "history": _answer_history,
        "unit": _answer_unit,
    }
    return to_json(answers[question["ask"]](paths, question))


def _answer_gaps(paths: Paths, question: dict[str, Any]) -> list[Missing]:
    gaps = [from_json(Gap, one) for one in question["gaps"]]
    needles = question["needles"]
    prefilter = None if needles is None else Prefilter(needle.encode("latin-1") for needle in needles)
    found = []
    for gap in gaps:
        entries = _entries_around(paths, gap, question["boot_id"], timedelta(microseconds=question["shift"]))
        found.append(
            between(
                entries,
                gap,
                wants=lambda entry: prefilter is None or prefilter.wants_text(entry.text),
            )
        )
    return found


def _entries_around(paths: Paths, gap: Gap, boot_id: str, shift: timedelta) -> list[KernelEntry]:
    reader = open_journal(paths)
    match_kernel(reader, boot_id)
    usec = timedelta(microseconds=1)
    first = gap.after.usec if gap.before is None else gap.before.usec
    reader.seek_monotonic(max(0, first + (shift - _SLACK) // usec), boot_id)
    last = gap.after.usec + _SLACK // usec
    return list(
        itertools.islice(
            itertools.takewhile(lambda entry: entry.usec <= last, kernel_entries(reader)),
            min(_MOST_ENTRIES, 2 * gap.count + 20_000),
        )
    )


def _answer_history(paths: Paths, question: dict[str, Any]) -> list[KernelEntry]:
    reader = open_journal(paths)
    match_kernel(reader, question["boot_id"])
    reader.seek_tail()
    until = question["until"]
    found: list[KernelEntry] = []
    for entry in kernel_entries(reader, backwards=True):
        if entry.usec < question["since"] or len(found) >= question["most"]:
            break
        if entry.kernel and (until is None or entry.usec <= until):
            found.append(entry)
    return found[::-1]


def _answer_unit(paths: Paths, question: dict[str, Any]) -> tuple[UnitLine, ...]:
    return unit_lines(paths, question["unit"], lines=question["lines"], boot_id=question["boot_id"])


def main() -> None:
    """Read the question, print the answer or the error."""
    try:
        result = {"answer": answer(json.load(sys.stdin)), "error": None}
    except JournalUnavailable as error:
        result = {"answer": [], "error": str(error)}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
