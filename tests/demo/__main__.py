"""`make demo`: the real daemon against a simulated host, told as it happens; ends by itself."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from demo import dying_gpu, xid

STORIES = {"xid": xid.play, "dying-gpu": dying_gpu.play}


def main() -> int:
    """Play one story; 0 when it ended well."""
    name = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else "xid"
    if name not in STORIES:
        print(f"there is no story {name!r} yet; there is: {', '.join(STORIES)}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.CRITICAL)
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="bandog-demo-") as folder:
        well = STORIES[name](Path(folder), console)
    console.print("[green]the demo ended well[/]" if well else "[red]the demo did not end well[/]")
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
