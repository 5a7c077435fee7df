"""The four hooks of bandog (pluggy, project name `bandog`). None of them runs per record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .domain.model import Incident, Request
    from .plugin import Action, LogDetector, Probe

PROJECT = "bandog"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_detectors(register: Callable[[type[LogDetector] | type[Probe]], None]) -> None:
    """Called once at load: pass each detector class of the plugin to `register`.

    Raising, or registering a class without `name` or `emits`, unregisters the whole plugin.
    """


@hookspec
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Called once at load: pass each action class of the plugin to `register`."""


@hookspec(firstresult=True)
def veto(request: Request, incident: Incident) -> str | None:
    """Called in a worker before a disruptive request runs: return the reason to wait, or None.

    The first reason wins. A veto that raises or takes longer than 5 s refuses.
    """


@hookspec
def incident_changed(incident: Incident, change: str) -> None:
    """Called in a worker after an incident changed; `change` is the timeline's word for it.

    What it returns or raises has no effect on the incident.
    """
