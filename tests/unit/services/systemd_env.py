"""systemd's own reading of an environment file, for tests of what we write."""

from __future__ import annotations


def parsed(text: str) -> dict[str, str]:
    """Read a file as systemd does: parse_env_file_internal of src/basic/env-file.c, state by state."""
    found: dict[str, str] = {}
    state, key, value = "pre-key", "", ""

    def push() -> None:
        found[key.rstrip(" \t")] = value if state not in ("value",) else value.rstrip(" \t")

    for c in text + "\n":
        if state == "pre-key":
            if c in "#;":
                state = "comment"
            elif c not in " \t\n\r":
                state, key = "key", c
        elif state == "key":
            if c == "\n":
                state = "pre-key"
            elif c == "=":
                state, value = "pre-value", ""
            else:
                key += c
        elif state == "pre-value":
            if c == "\n":
                push()
                state = "pre-key"
            elif c == "'":
                state = "single"
            elif c == '"':
                state = "double"
            elif c == "\\":
                state = "value-escape"
            elif c not in " \t\r":
                state, value = "value", value + c
        elif state == "value":
            if c == "\n":
                push()
                state = "pre-key"
            elif c == "\\":
                state = "value-escape"
            else:
                value += c
        elif state == "value-escape":
            state = "value"
            value += "" if c == "\n" else c
        elif state == "single":
            if c == "'":
                state = "pre-value"
            else:
                value += c
        elif state == "double":
            if c == '"':
                state = "pre-value"
            elif c == "\\":
                state = "double-escape"
            else:
                value += c
        elif state == "double-escape":
            state = "double"
            if c in '"\\`$':
                value += c
            elif c != "\n":
                value += "\\" + c
        elif state == "comment":
            state = "comment-escape" if c == "\\" else "pre-key" if c == "\n" else "comment"
        elif state == "comment-escape":
            state = "comment"
    return found
