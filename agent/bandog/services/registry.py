"""The services that bandog looks after, as the operator wrote them in `services.d`.

A service is one systemd unit with a way to tell that it is ready. GPU profiles, progress and canary
are kept here as read, for the actions that use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..domain.model import EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How it is started: `order` among the services, `settle` after it is ready, `timeout` to ready.

    `parallel`: it may start at the same time as others that are so, where they share no GPU.
    """

    order: int = 100
    parallel: bool = False
    settle: timedelta = timedelta(seconds=20)
    timeout: timedelta = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """How readiness is asked: exactly one of http (URL), tcp (host:port), command (argv), unit."""

    http: str | None = None
    tcp: str | None = None
    command: tuple[str, ...] | None = None
    unit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One file of `services.d`. `gpus` is "all", () for none, or PCI addresses and UUIDs."""

    name: str
    unit: str
    kind: str = "serving"
    gpus: str | tuple[str, ...] = ()
    start: Start = Start()
    ready: Ready = Ready(unit=True)
    progress: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    canary: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    profiles: tuple[Mapping[str, Any], ...] = ()
    mode: str | tuple[str, ...] | None = None
    file: str = ""


class Registry:
    """Every service by name and by unit. Replaced whole at a reload."""

    def __init__(self, services: tuple[Service, ...] = ()) -> None:
        self._by_name = {service.name: service for service in services}
        self._by_unit = {service.unit: service for service in services}

    def __iter__(self) -> Iterator[Service]:
        return iter(sorted(self._by_name.values(), key=lambda one: (one.start.order, one.name)))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Service:
        """Return the service called `name`; KeyError if there is none."""
        return self._by_name[name]

    def of_unit(self, unit: str) -> Service | None:
        """Return the service whose unit this is, or None."""
        return self._by_unit.get(unit)

    def on_gpu(self, address: str) -> tuple[Service, ...]:
        """Return the services whose `gpus:` hold the GPU at `address` (the one spelling)."""
        return tuple(one for one in self if one.gpus == "all" or address in one.gpus)

    def of_uuid(self, uuid: str) -> tuple[Service, ...]:
        """Return the services whose `gpus:` list the card of that UUID."""
        return tuple(one for one in self if one.gpus != "all" and uuid in one.gpus)
