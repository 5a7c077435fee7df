"""python3 fakenvml STATE preset 4|8 | show | set KEY=VALUE… | del KEY…   (values are JSON, else text)"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder: `python3 tests/fakenvml`
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fakenvml import ADDRESSES, State


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main(words: list[str]) -> int:
    """Change or show a state file; 2 on wrong usage."""
    if len(words) >= 2:
        state, command, rest = State(Path(words[0])), words[1], words[2:]
        if command == "show" and not rest:
            print(json.dumps(state.read(), indent=1))
            return 0
        if command == "preset" and rest in [[str(count)] for count in ADDRESSES]:
            State(state.path, int(rest[0]))
            return 0
        if command == "set" and rest and all("=" in one for one in rest):
            state.change({key: _value(text) for key, _, text in (one.partition("=") for one in rest)})
            return 0
        if command == "del" and rest:
            state.change(dict.fromkeys(rest))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
