"""What configuration becomes: frozen values without any trace of YAML or pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..domain.model import EMPTY
from ..domain.policy import Policy, Rate
from ..domain.windows import Window
from ..services.registry import Service
from .problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTarget:
    """Where messages go under one name.

    `urls` are as written: `credential:NAME` and `file:/PATH` (`config.credentials` reads them), or
    literal Apprise URLs, which are secrets.
    """

    name: str
    urls: tuple[str, ...]

    def __repr__(self) -> str:
        return f"NotifyTarget(name={self.name!r}, urls=<{len(self.urls)} masked>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLock:
    """The FleetLock server that lets one host of a group reboot at a time (coreos.github.io/zincati)."""

    url: str
    group: str = "default"
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The dead-man ping: `url` (or `credential:NAME`) is asked every `every`, so that silence is noticed."""

    url: str
    every: timedelta = timedelta(minutes=5)

    def __repr__(self) -> str:
        return f"Heartbeat(url=<masked>, every={self.every!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration, checked. `policies` stand in the order in which they are tried.

    `mode` is observe, enforce or the actions that may act. `budgets` hold what the operator set;
    defaults are `domain.budgets`'. `plugins` maps a name to its options or to "off"; the main file's
    `evidence:` is among them, as the options of the action of that name.
    """

    mode: str | tuple[str, ...] = "observe"
    notify: Mapping[str, NotifyTarget] = field(default_factory=lambda: EMPTY)
    windows: Mapping[str, Window] = field(default_factory=lambda: EMPTY)
    budgets: Mapping[str, Rate] = field(default_factory=lambda: EMPTY)
    fleet_lock: FleetLock | None = None
    plugins: Mapping[str, Mapping[str, Any] | str] = field(default_factory=lambda: EMPTY)
    kubernetes: bool = False
    metrics_textfile: Path | None = None
    heartbeat: Heartbeat | None = None
    log_level: str = "info"
    policies: tuple[Policy, ...] = ()
    services: tuple[Service, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What reading the configuration came to.

    `config` is None as soon as one problem is an error. `salvaged` is then the part that is
    right, always in observe mode, for a daemon that has no older configuration to keep.
    """

    config: Config | None
    problems: tuple[Problem, ...] = ()
    salvaged: Config | None = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that are no warnings."""
        return tuple(one for one in self.problems if not one.is_warning)
