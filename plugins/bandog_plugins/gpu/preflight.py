"""Looks at the GPUs before a service is started on them: `python -I -m bandog_plugins.gpu.preflight`.

Of the question on its standard input, `{"at": [addresses], "cuda": [addresses]}`, it answers `at` with one round of
NVML as the resident child gives it, and `cuda` by trying each of those cards with CUDA. Each answer is a line of JSON
at once, so that whoever gives it up knows how far it came:

    {"nvml": {...}}                          a round; only where `at` is in the question
    {"order": [addresses]}                   what CUDA sees by PCI_BUS_ID, in its order
    {"none": "..."}                          CUDA's library is not there: nothing more follows
    {"trying": "0000:e5:00.0"}               from here to the next line a call may hang
    {"ok": "0000:e5:00.0"}                   it computes
    {"full": "0000:e5:00.0", "why": "..."}   its memory is taken, or it is another's alone: nothing is proved
    {"failed": "0000:e5:00.0", "why": "..."}; without an address: CUDA as a whole
    {"done": true}
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from .cuda import DEVICE_UNAVAILABLE, OUT_OF_MEMORY, Cuda, Failed

COMM = "bandog-check"


def main() -> None:
    """Answer the question."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        out.write(json.dumps(line, separators=(",", ":")) + "\n")
        out.flush()

    with suppress(OSError):
        Path("/proc/self/comm").write_text(COMM)
    question = json.loads(sys.stdin.readline())
    if "at" in question:
        from . import child  # NVML has no business in a process that only tries CUDA

        say(nvml=child.take({"round": 1, "at": question["at"]}, child.Cards()))
    if "cuda" in question:
        _try_cuda(question["cuda"], say)
    say(done=True)


def _try_cuda(wanted: list[str], say: Any) -> None:
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        cuda = Cuda()
    except OSError as error:
        say(none=str(error))
        return
    say(trying="")
    try:
        order = cuda.order()
    except Failed as error:
        say(failed="", why=str(error))
        return
    say(order=order)
    for address in wanted:
        if address not in order:
            say(failed=address, why="CUDA does not see it")
            continue
        say(trying=address)
        try:
            cuda.try_out(order.index(address))
        except Failed as error:
            full = error.code in (OUT_OF_MEMORY, DEVICE_UNAVAILABLE)
            say(**{"full" if full else "failed": address}, why=str(error))
        except ValueError as error:
            say(failed=address, why=str(error))
        else:
            say(ok=address)


if __name__ == "__main__":
    main()
