"""`python3 -m fakevllm serve MODEL …`, or `python3 …/tests/fakevllm serve MODEL …`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # called by the name of its folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fakevllm.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
