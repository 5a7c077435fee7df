"""Which container a managed unit started.

A unit that runs `docker run --name vllm …` holds only the client; the server lives in a scope that
the container engine made. The client's arguments and the engine's own file join the two. Only
processes of managed units are looked at, once, when they are new and not in D state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..host.paths import Paths

CLIENTS = ("docker", "podman", "nerdctl", "conmon")
_ID = re.compile(r"[0-9a-f]{64}\Z")
_MOST = 1 << 20
# Options of `run`, `create` and `start` that stand without a value; any other takes the next word.
_BARE = re.compile(r"-[aditPq]+\Z|--(?:rm|detach|interactive|tty|attach|init|privileged|read-only|replace|quiet)\Z")


def named(argv: Sequence[str]) -> str | None:
    """Return the name or id of the container that a client's command line starts, or None.

    Understands conmon's `-c ID`, and `run|create --name N`, `start|attach|wait N` of the clients.
    """
    if not argv:
        return None
    program = argv[0].rpartition("/")[2]
    if program == "conmon":
        return _option(argv, "-c", "--cid")
    words = list(argv[1:])
    if words and words[0] == "container":
        words.pop(0)
    while words and words[0].startswith("-"):
        words = words[1 if _BARE.match(words[0]) or "=" in words[0] else 2 :]
    if not words:
        return None
    verb, rest = words[0], words[1:]
    if verb in ("run", "create"):
        return _option(rest, "--name")
    if verb in ("start", "attach", "wait"):
        return next((word for word in rest if not word.startswith("-")), None)
    return None


def _option(words: Sequence[str], *names: str) -> str | None:
    for place, word in enumerate(words):
        if word in names:
            return words[place + 1] if place + 1 < len(words) else None
        for name in names:
            if word.startswith(f"{name}="):
                return word.partition("=")[2] or None
    return None


def arguments(paths: Paths, pid: int) -> tuple[str, ...]:
    """Return a process's command line; empty when it has gone. Not for a process in D state."""
    try:
        with (paths.proc / str(pid) / "cmdline").open("rb") as file:
            data = file.read(65536)
    except OSError:
        return ()
    return tuple(data.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")) if data else ()


def docker_name(paths: Paths, container: str) -> str | None:
    """Return the name that Docker gave a container, from its `config.v2.json`; None where there is none."""
    if not _ID.match(container):
        return None
    place = paths.at(f"/var/lib/docker/containers/{container}/config.v2.json")
    try:
        with place.open("rb") as file:
            name = json.loads(file.read(_MOST)).get("Name")
    except (OSError, ValueError, AttributeError):
        return None
    return name.lstrip("/") if isinstance(name, str) and name else None
