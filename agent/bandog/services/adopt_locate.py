"""Where the files of a unit's model lie on this host, if they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..host.paths import Paths
from .adopt_command import Command
from .adopt_unit import Found

_HUB_IN_CONTAINER = {"tgi": "/data"}


def model_folder(paths: Paths, found: Found, command: Command) -> Path | None:
    """Return the folder with the model's `config.json`, None where it is not found on this host."""
    name = command.model
    if not name or "$" in name:
        return None
    mounts = _mounts(found, command) if command.client else {}
    for place in _places(paths, found, command, name):
        here = _outside(place, mounts) if command.client else place
        if here is not None and (paths.at(here) / "config.json").is_file():
            return paths.at(here)
    return None


def _places(paths: Paths, found: Found, command: Command, name: str) -> Iterator[str]:
    """Yield the folders that `name` may mean, as the server sees them."""
    if name.startswith("/"):
        yield name
        return
    if name.startswith("./") or ".." in name:
        return
    directory = found.text.last("Service", "WorkingDirectory")
    if not command.client and directory.startswith("/"):
        yield f"{directory}/{name}"
    mounts = _mounts(found, command) if command.client else {}
    for hub in _hubs(paths, found, command):
        folder = f"{hub}/models--{name.replace('/', '--')}"
        outside = _outside(folder, mounts) if command.client else folder
        if outside is None:
            continue
        try:
            revision = (paths.at(outside) / "refs/main").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if "/" not in revision:
            yield f"{folder}/snapshots/{revision}"


def _hubs(paths: Paths, found: Found, command: Command) -> Iterator[str]:
    """Yield the caches of the Hugging Face hub in the order in which its library looks (huggingface_hub, constants)."""
    env: Mapping[str, str] = found.env
    if command.client:
        inside = found.text.environment("Container")
        given = [one.partition("=") for one in command.all_of("-e", "--env")]
        env = {**inside, **{key: value for key, _, value in given}}
    for variable, rest in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "/hub")):
        if env.get(variable, "").startswith("/"):
            yield env[variable] + rest
    if command.client:
        yield _HUB_IN_CONTAINER.get(command.engine, "/root/.cache/huggingface/hub")
        return
    home = env.get("HOME") or _home(paths, found.text.last("Service", "User") or "root")
    if home:
        yield f"{home}/.cache/huggingface/hub"


def _home(paths: Paths, user: str) -> str:
    try:
        lines = paths.at("/etc/passwd").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    fields = (line.split(":") for line in lines)
    return next((one[5] for one in fields if len(one) > 6 and user in (one[0], one[2])), "")


def _mounts(found: Found, command: Command) -> dict[str, str]:
    """Return folder inside the container → folder of the host."""
    volumes = [*command.all_of("-v", "--volume"), *found.text.values("Container", "Volume")]
    parts = [value.split(":") for value in volumes]
    return {one[1].rstrip("/"): one[0].rstrip("/") for one in parts if len(one) > 1 and one[0].startswith("/")}


def _outside(place: str, mounts: Mapping[str, str]) -> str | None:
    """Return where a folder of the container lies on the host; the innermost mount counts."""
    inside = [one for one in mounts if place == one or place.startswith(f"{one}/")]
    if not inside:
        return None
    mount = max(inside, key=len)
    return mounts[mount] + place[len(mount) :]
