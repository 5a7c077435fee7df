"""Loads plugins one at a time, takes a broken one out whole, and reports on each.

First-party plugins come through the same entry points (group `bandog`) as anyone's; files in
`/etc/bandog/plugins.d/` load too if only root can have written them.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from . import hookspecs
from .config.catalogue import PluginCatalogue, build_catalogue
from .domain.model import EMPTY
from .host.paths import Paths
from .host.site import Clock, Host
from .plugin import Action, LogDetector, Probe
from .runtime.guard import Guard

log = logging.getLogger(__name__)
Detector = LogDetector | Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """What became of one plugin: `state` is loaded, off, unsupported or broken, `why` in one sentence."""

    name: str
    origin: str
    state: str
    why: str = ""
    provides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plugin that was found and not yet loaded."""

    name: str
    origin: str
    load: Callable[[], Any]


@dataclass(slots=True, kw_only=True)
class Plugins:
    """The instances that work on this host, by name, and a report on every plugin that was found."""

    detectors: list[LogDetector] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    actions: dict[str, Action] = field(default_factory=dict)
    reports: list[PluginReport] = field(default_factory=list)


class PluginSet:
    """The classes that the loadable plugins registered, before any of them is built."""

    def __init__(self, barred: Mapping[str, str] = EMPTY) -> None:
        self._barred = barred
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.detectors: dict[str, type[LogDetector] | type[Probe]] = {}
        self.actions: dict[str, type[Action]] = {}
        self.owners: dict[str, Candidate] = {}
        self.broken: list[PluginReport] = []

    @property
    def catalogue(self) -> PluginCatalogue:
        """What configuration may name: kinds, facts, actions, options."""
        return build_catalogue(
            self.detectors.values(),
            self.actions.values(),
            plugins=sorted({owner.name for owner in self.owners.values()}),
            broken=sorted({report.name for report in self.broken}),
        )

    def add(self, candidate: Candidate, guard: Guard | None = None) -> None:
        """Load one plugin; whatever goes wrong in it leaves the set as it was and is reported."""
        before = (dict(self.detectors), dict(self.actions), dict(self.owners))
        plugin: Any = None
        if candidate.name in self._barred:
            self._report_broken(candidate, self._barred[candidate.name])
            return
        try:
            with guard.watch(candidate.name) if guard else _unwatched():
                plugin = candidate.load()
                self._register(candidate, plugin)
        except KeyboardInterrupt:  # a person, at a command that loads plugins
            raise
        # The first of the three doors where everything is caught: foreign code runs at its import.
        except BaseException as error:
            self.detectors, self.actions, self.owners = before
            if plugin is not None and self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
            self._report_broken(candidate, f"{type(error).__name__}: {error}")

    def _report_broken(self, candidate: Candidate, why: str) -> None:
        log.error("plugin does not load plugin=%s origin=%s why=%s", candidate.name, candidate.origin, why)
        self.broken.append(PluginReport(name=candidate.name, origin=candidate.origin, state="broken", why=why))

    def _register(self, candidate: Candidate, plugin: Any) -> None:
        self.manager.register(plugin, name=f"{candidate.name}@{candidate.origin}")
        self.manager.check_pending()
        others = self.manager.subset_hook_caller
        rest = [one for one in self.manager.get_plugins() if one is not plugin]
        others("register_detectors", rest)(
            register=lambda cls: self._take(candidate, cls, (LogDetector, Probe), self.detectors)
        )
        others("register_actions", rest)(register=lambda cls: self._take(candidate, cls, (Action,), self.actions))

    def _take(self, candidate: Candidate, cls: Any, bases: tuple[type, ...], into: dict[str, Any]) -> None:
        if not (isinstance(cls, type) and issubclass(cls, bases)):
            wanted = " or ".join(base.__name__ for base in bases)
            raise TypeError(f"register() wants a class derived from {wanted}, got {cls!r}")
        name = getattr(cls, "name", None)
        if not isinstance(name, str) or not name:
            raise TypeError(f"{cls.__name__} has no name")
        if name in into:
            raise ValueError(f"{name} is already registered by {self.owners[name].origin}")
        if not issubclass(cls, Action) and not isinstance(getattr(cls, "emits", None), Mapping):
            raise TypeError(f"{cls.__name__}.emits is no mapping of kinds to facts")
        into[name] = cls
        self.owners[name] = candidate

    def build(self, options: Mapping[str, Any], host: Host, guard: Guard | None = None) -> Plugins:
        """Make an instance of each class; `options` maps a name to its options, or to "off"."""
        made = Plugins(reports=list(self.broken))
        for name, cls in [*self.detectors.items(), *self.actions.items()]:
            owner = self.owners[name]
            if name in self._barred:
                why = self._barred[name]
                log.error("plugin is left out plugin=%s origin=%s why=%s", name, owner.origin, why)
                made.reports.append(PluginReport(name=name, origin=owner.origin, state="broken", why=why))
                self.drop(name)
                continue
            with guard.watch(name) if guard else _unwatched():
                state, why, instance = _instance(cls, options.get(name, options.get(owner.name)), host)
            if state == "loaded" and isinstance(instance, LogDetector):
                made.detectors.append(instance)
            elif state == "loaded" and isinstance(instance, Probe):
                made.probes.append(instance)
            elif state == "loaded" and isinstance(instance, Action):
                made.actions[name] = instance
            provides = tuple(getattr(cls, "emits", ())) or (name,)
            made.reports.append(PluginReport(name=name, origin=owner.origin, state=state, why=why, provides=provides))
        return made

    def drop(self, name: str) -> None:
        """Unregister the hooks of the plugin that provides `name`, after it failed at work."""
        owner = self.owners.get(name)
        if owner is None:
            return
        plugin = self.manager.get_plugin(f"{owner.name}@{owner.origin}")
        if plugin is not None:
            self.manager.unregister(plugin)


def _instance(cls: type[Any], options: Any, host: Host) -> tuple[str, str, Any]:
    if options == "off":
        return "off", "switched off in the configuration", None
    try:
        wanted = cls.Options
        instance = cls(options if isinstance(options, wanted) else wanted(**(options or {})))
        if getattr(instance.options, "enabled", True) is False:
            return "off", f"off by default; plugins: {{{cls.name}: {{enabled: true}}}} switches it on", None
        why = instance.unsupported(host)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code again: the first door has two leaves
        return "broken", f"{type(error).__name__}: {error}", None
    return ("unsupported", why, None) if why else ("loaded", "", instance)


class _unwatched:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def discover(paths: Paths | None = None, guard: Guard | None = None, *, barred: Mapping[str, str] = EMPTY) -> PluginSet:
    """Load every plugin of the entry points and of plugins.d, each by itself; `barred` names those to leave out."""
    found = PluginSet(barred)
    for candidate in [*_entry_points(), *_files((paths or Paths()).etc / "plugins.d", found)]:
        found.add(candidate, guard)
    return found


def load_catalogue(paths: Paths | None = None) -> PluginCatalogue:
    """Return what configuration may name on this host."""
    return discover(paths).catalogue


def _entry_points() -> Iterator[Candidate]:
    for point in sorted(entry_points(group=hookspecs.PROJECT), key=lambda one: one.name):
        yield Candidate(name=point.name, origin=f"entry point {point.value}", load=point.load)


def _files(folder: Path, found: PluginSet) -> Iterator[Candidate]:
    try:
        files = sorted(one for one in folder.iterdir() if one.suffix == ".py")
    except OSError:
        return
    for file in files:
        name = file.stem.replace("_", "-")
        why = _unsafe(folder) or _unsafe(file)
        if why:
            found.broken.append(PluginReport(name=name, origin=str(file), state="broken", why=why))
        else:
            yield Candidate(name=name, origin=str(file), load=functools.partial(_import_file, file))


def _unsafe(path: Path) -> str | None:
    try:
        info = path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if info.st_uid != 0:
        return f"{path} does not belong to root; run: chown root {path}"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others than root; run: chmod go-w {path}"
    return None


def _import_file(file: Path) -> ModuleType:
    name = f"bandog_site_plugins.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHost:
    """This host, as `unsupported` sees it."""

    paths: Paths
    clock: Clock
