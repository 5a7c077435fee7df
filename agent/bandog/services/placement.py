"""From the path of a control group to the unit and the container that it belongs to."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from ..host.cgroups import unescaped

_SUFFIXES = (".service", ".scope", ".socket", ".mount", ".swap")
_ID = r"(?P<id>[0-9a-f]{64}|[0-9a-f]{12,63})"
# docker-<id>.scope (systemd driver), libpod-<id>.scope and libpod-payload-<id> (podman), cri-containerd-<id>.scope,
# crio-<id>.scope, nerdctl-<id>.scope; <parent>:cri-containerd:<id>; and with the cgroupfs driver the bare id.
_CONTAINER = re.compile(
    rf"(?:(?:docker|libpod|libpod-payload|cri-containerd|crio|nerdctl|containerd)-|.*:){_ID}(?:\.scope)?\Z"
)
_BARE_ID = re.compile(r"(?P<id>[0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a task lives: `units` from the innermost out (user units before `user@1000.service`), and its container."""

    units: tuple[str, ...] = ()
    container: str | None = None

    @property
    def unit(self) -> str | None:
        """The unit to name: the innermost service, else the innermost unit of any kind."""
        return next((one for one in self.units if one.endswith(".service")), self.units[0] if self.units else None)


@functools.lru_cache(maxsize=1024)  # asked for each process of the host every few seconds
def placement(group: str) -> Placement:
    """Return the units and the container of a control group's path, e.g. `/system.slice/vllm.service/worker`."""
    units: list[str] = []
    container: str | None = None
    for part in reversed(group.split("/")):
        name = unescaped(part)
        match = _CONTAINER.match(name) or _BARE_ID.match(name)
        if match is not None and container is None:
            container = match["id"]
        if name.endswith(_SUFFIXES):
            units.append(name)
    return Placement(units=tuple(units), container=container)
