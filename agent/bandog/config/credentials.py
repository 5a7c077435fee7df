"""Where secrets come from: systemd credentials, or a file that only root can read (DESIGN section 7)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_LIMIT = 64 << 10


class SecretError(Exception):
    """A secret cannot be had; the text says why and names no secret."""


def credential_file(name: str, etc: Path) -> Path:
    """Return where the operator puts the credential `name` when systemd does not bring it."""
    return etc / "credentials" / name


def credential_exists(name: str, etc: Path, environ: Mapping[str, str]) -> bool:
    """Return whether `name` is there, or will be once systemd starts the service (systemd.exec(5))."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    places = [credential_file(name, etc)]
    for store in (Path(folder) if folder else None, etc.parent / "credstore", etc.parent / "credstore.encrypted"):
        if store is not None:
            places += [store / name, store / f"bandog.{name}"]
    return any(os.path.lexists(place) for place in places)


def read_secret(url: str, etc: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the lines that `credential:NAME` or `file:/PATH` stands for; a literal URL stands for itself.

    Blank lines and comments are left out. Raises SecretError.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "credential":
        folder = environ.get("CREDENTIALS_DIRECTORY")
        given = [Path(folder) / rest, Path(folder) / f"bandog.{rest}"] if folder else []
        place = next((one for one in given if one.exists()), credential_file(rest, etc))
    elif scheme == "file" and not rest.startswith("//"):
        place = Path(rest)
    else:
        return [url]
    try:
        # O_NONBLOCK: a FIFO put there by mistake must not stop the loop at open().
        with os.fdopen(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise SecretError(f"{place} is no regular file; put the address into one, chmod 600")
            data = file.read(_LIMIT)
    except OSError as error:
        raise SecretError(f"{place} cannot be read: {error.strerror}") from error
    if info.st_mode & 0o077 and not (scheme == "credential" and place.is_relative_to("/run/credentials")):
        raise SecretError(f"{place} can be read by others than its owner; run: chmod 600 {place}")
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]
