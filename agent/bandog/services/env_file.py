"""systemd's environment files: which names and values a variable may have, and how they are quoted.

Source: systemd.exec(5), `EnvironmentFile=`, and systemd's src/basic/env-file.c and env-util.c (tried with 252 and
257). One assignment that systemd does not take makes it drop that one, and text that is no UTF-8 the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}\Z")
MOST_VALUE = 32768
"""Bytes of one value; the kernel takes 128 KiB for one string (execve(2), MAX_ARG_STRLEN)."""
OURS = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "BANDOG_GPUS", "BANDOG_GPU_UUIDS")
"""What bandog itself sets; a profile or a policy that sets one of them would undo the choice of the GPUs."""
_ESCAPED = re.compile(r'(["\\`$])')
_BACKSLASHED = r"\\\1"


def is_ours(name: str) -> bool:
    """Return whether a variable is one that bandog sets."""
    return name in OURS or name.startswith("BANDOG_")


def is_value(value: str) -> bool:
    """Return whether systemd keeps a value: UTF-8 without control characters but tab and newline."""
    try:
        length = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return length <= MOST_VALUE and all(one in "\t\n" or (one >= " " and one != "\x7f") for one in value)


def render(env: Mapping[str, str], *, comment: str = "") -> str:
    """Return the file that gives a unit these variables; raises ValueError for a name or value that it cannot.

    `comment` is one line, put at the top. A backslash at its end would go on into the next line.
    """
    if "\n" in comment or "\r" in comment or comment.endswith("\\"):
        raise ValueError("a comment is one line")
    lines = [f"# {comment}"] if comment else []
    for name, value in env.items():
        if NAME.match(name) is None:
            raise ValueError(f"{name!r} is no name of a variable")
        if not is_value(value):
            raise ValueError(f"{name}: systemd takes no such value: {value[:40]!r}")
        lines.append(f'{name}="{_ESCAPED.sub(_BACKSLASHED, value)}"')
    return "".join(f"{line}\n" for line in lines)
