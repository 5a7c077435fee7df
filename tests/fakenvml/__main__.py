"""python3 fakenvml STATE preset 4|8 | show | set KEY=VALUE… | del KEY…   (values are JSON, else text)

`2.lost=true` is short for `gpus.2.lost=true`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Run as a folder, `python3 tests/fakenvml`, it is no package, and in the lab there is nothing else.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fakenvml import ADDRESSES, State


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _key(text: str) -> str:
    return f"gpus.{text}" if text[:1].isdecimal() else text


def _do(state: State, command: str, rest: list[str]) -> bool:
    if command == "show" and not rest:
        print(json.dumps(state.read(), indent=1))
    elif command == "preset" and rest in [[str(count)] for count in ADDRESSES]:
        State(state.path, int(rest[0]))
    elif command == "set" and rest and all("=" in one for one in rest):
        state.change({_key(key): _value(text) for key, _, text in (one.partition("=") for one in rest)})
    elif command == "del" and rest:
        state.change(dict.fromkeys(map(_key, rest)))
    else:
        return False
    return True


def main(words: list[str]) -> int:
    """Change or show a state file; 1 where that cannot be done, 2 on wrong usage."""
    try:
        if len(words) >= 2 and _do(State(Path(words[0])), words[1], words[2:]):
            return 0
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"fakenvml: {words[0]}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
