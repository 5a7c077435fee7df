"""Judges what a file says against what is named elsewhere: kinds, facts, actions, targets, names.

A model knows the shape of one file only; this module knows the loaded plugins and the main file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..domain.budgets import HOST, REBOOT
from ..domain.placeholders import BUILT_IN
from .catalogue import PluginCatalogue
from .credentials import credential_exists, credential_file
from .models import FactRange, MainModel, PolicyModel, ServiceModel
from .problems import Path as Place
from .problems import Problem, hint, quote
from .translate import validate
from .yaml12 import Document

# As domain.placeholders reads them, and a sign that begins none of them.
_NAME = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})?")
_TYPE_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list"}


class Judge:
    """Collects the problems of one document."""

    def __init__(self, document: Document, plugins: PluginCatalogue) -> None:
        self.document = document
        self.plugins = plugins
        self.problems: list[Problem] = []

    def say(self, code: str, path: Place, *, key: bool = False, warn: bool = False, **values: Any) -> None:
        """Report `code` at `path`."""
        file, place = self.document.where(path, key=key)
        self.problems.append(Problem.of(code, file, place=place, path=path, is_warning=warn, **values))

    def unknown(self, code: str, path: Place, *, key: bool = False, **values: Any) -> None:
        """Report a name that no loaded plugin knows: a warning while one of them did not load."""
        self.say(code, path, key=key, warn=bool(self.plugins.broken), **values)

    def listed(self, path: Place) -> Callable[[int], Place]:
        """Return how to get the path of the n-th item at `path`, which may be one text or a list."""
        return lambda n: (*path, n) if (*path, n) in self.document.values else path


def check_policy(
    document: Document, model: PolicyModel, plugins: PluginCatalogue, main: MainModel | None, layer: str = "site"
) -> list[Problem]:
    """Return what is wrong with a policy. Without `main`, targets and windows are not judged."""
    judge = Judge(document, plugins)
    kinds = _check_kinds(judge, ("match", "kind"), model.match.kind)
    facts: dict[str, type] = {}
    for kind in kinds:
        facts.update(plugins.kinds[kind])
    if kinds:
        _check_facts(judge, model, facts)
    _check_kinds(judge, ("inhibits",), model.inhibits)
    _check_mode(judge, ("mode",), model.mode)
    if main is not None:
        _check_targets(judge, ("notify",), model.notify, main)
    for index, step in enumerate(model.steps):
        path: Place = ("steps", index)
        spec = plugins.actions.get(step.do)
        if spec is None:
            judge.unknown("unknown-action", (*path, "do"), name=step.do, hint=hint(step.do, plugins.actions))
        else:
            judge.problems += validate(spec.with_model, document, at=(*path, "with"), ignore_names=True).problems
        if kinds:
            _check_names(judge, (*path, "with"), step.with_, {*BUILT_IN, *facts})
        if main is None:
            continue
        if step.do == "notify":
            _check_targets(judge, (*path, "with", "to"), _texts(step.with_.get("to")), main)
        # A shipped step that waits for a window is a plan; that there is none is said when it would begin.
        if step.with_.get("when") == "window" and not main.windows and layer != "shipped":
            judge.say("no-window", (*path, "with", "when"), warn=True)
    return judge.problems


def _check_kinds(judge: Judge, path: Place, globs: list[str]) -> list[str]:
    known = judge.plugins.kinds
    matched: dict[str, None] = {}
    at = judge.listed(path)
    for index, glob in enumerate(globs):
        found = [kind for kind in known if fnmatchcase(kind, glob)]
        if not found:
            judge.unknown("unknown-kind", at(index), value=quote(glob), hint=hint(glob, known))
        matched.update(dict.fromkeys(found))
    return list(matched)


def _check_facts(judge: Judge, model: PolicyModel, facts: Mapping[str, type]) -> None:
    for name, test in model.match.facts.items():
        path: Place = ("match", "facts", name)
        if name not in facts:
            kind = " or ".join(model.match.kind)
            judge.unknown("unknown-fact", path, key=True, kind=kind, fact=name, hint=hint(name, facts))
            continue
        wanted = facts[name]
        if isinstance(test, FactRange):
            _check_range(judge, path, test, name, wanted)
            continue
        at = judge.listed(path)
        for index, value in enumerate(test if isinstance(test, list) else [test]):
            if not _fits(value, wanted):
                _say_type(judge, at(index), name, wanted, value)


def _check_range(judge: Judge, path: Place, test: FactRange, name: str, wanted: type) -> None:
    if not judge.document.has_below(path):
        judge.say("empty", path)
    if test.min is not None and test.max is not None and test.min > test.max:
        judge.say("min-max", path, least=f"{test.min:g}", most=f"{test.max:g}")
    if test.glob is not None and wanted is not str:
        _say_type(judge, (*path, "glob"), name, wanted, test.glob)
    if wanted not in (int, float):
        for bound, value in (("min", test.min), ("max", test.max)):
            if value is not None:
                _say_type(judge, (*path, bound), name, wanted, f"{value:g}", quoted=False)


def _fits(value: Any, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is wanted


def _say_type(judge: Judge, path: Place, name: str, wanted: type, value: Any, *, quoted: bool = True) -> None:
    word = _TYPE_WORDS.get(wanted, wanted.__name__)
    judge.say("fact-type", path, fact=name, type=word, value=quote(value) if quoted else value)


def _check_names(judge: Judge, path: Place, value: Any, known: set[str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_names(judge, (*path, key), item, known)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_names(judge, (*path, index), item, known)
    elif isinstance(value, str):
        for match in _NAME.finditer(value):
            name = match[2] or match[3]
            if name is None and match[1] is None:
                judge.say("lone-dollar", path)
            elif name is not None and name not in known:
                judge.unknown("unknown-name", path, name=name, hint=hint(name, known))


def _check_mode(judge: Judge, path: Place, mode: str | tuple[str, ...] | None) -> None:
    known = judge.plugins.actions
    for index, name in enumerate(mode if isinstance(mode, tuple) else ()):
        if name not in known:
            judge.unknown("unknown-action", (*path, index), name=name, hint=hint(name, known))


def _check_targets(judge: Judge, path: Place, names: list[str], main: MainModel) -> None:
    at = judge.listed(path)
    for index, name in enumerate(names):
        if name not in main.notify and "$" not in name:
            judge.say("unknown-target", at(index), name=name, hint=hint(name, main.notify))


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def check_service(
    document: Document, model: ServiceModel, plugins: PluginCatalogue, etc: Path, environ: Mapping[str, str]
) -> list[Problem]:
    """Return what is wrong with a service."""
    judge = Judge(document, plugins)
    _check_mode(judge, ("mode",), model.mode)
    for path, part, names in (
        (("ready",), model.ready, ("http", "tcp", "command", "unit")),
        (("progress",), model.progress, ("metrics", "log", "file", "command")),
    ):
        if part is None or not isinstance(document.value.get(path[0]), dict):
            continue
        # A value that does not fit has been reported already and counts as there.
        found = [name for name in names if (*path, name) in document.values]
        if len(found) != 1:
            told = f"there are {' and '.join(found)}" if found else "there is none"
            judge.say("exactly-one", path, names=", ".join(names), found=told)
    if model.canary is not None and model.canary.credential is not None:
        _check_credential(judge, ("canary", "credential"), model.canary.credential, etc, environ)
    return judge.problems


def check_main(
    document: Document, model: MainModel, plugins: PluginCatalogue, etc: Path, environ: Mapping[str, str]
) -> list[Problem]:
    """Return what is wrong with the main file, its plugins' options included."""
    judge = Judge(document, plugins)
    _check_mode(judge, ("mode",), model.mode)
    budgets = {HOST, REBOOT, *(name for name, spec in plugins.actions.items() if spec.traits.disruptive)}
    for name in model.budgets:
        if name not in budgets:
            judge.unknown("unknown-budget", ("budgets", name), key=True, name=name, hint=hint(name, budgets))
    for name, value in model.plugins.items():
        _check_plugin(judge, name, value)
    for path, url in secret_urls(document, model):
        scheme, _, rest = url.partition(":")
        if scheme == "credential":
            _check_credential(judge, path, rest, etc, environ)
    return judge.problems


def _check_plugin(judge: Judge, name: str, value: Any) -> None:
    plugins = judge.plugins
    path: Place = ("plugins", name)
    known = {*plugins.options, *plugins.plugins}
    if name in plugins.broken:
        return
    if name not in known:
        off = value == "off"
        code = "plugin-off-unknown" if off else "unknown-plugin"
        judge.say(code, path, key=True, warn=off or bool(plugins.broken), name=name, hint=hint(name, known))
    elif isinstance(value, dict) and name in plugins.options:
        judge.problems += validate(plugins.options[name], judge.document, at=path).problems
    elif value != "off":
        judge.say("plugin-options", path, value=quote(value))


def secret_urls(document: Document, model: MainModel) -> Iterator[tuple[Place, str]]:
    """Yield each URL that is or names a secret, with its place."""
    for name, target in model.notify.items():
        path: Place = ("notify", name, "urls")
        for index, url in enumerate(target.urls):
            yield ((*path, index) if (*path, index) in document.values else path), url
    if model.heartbeat is not None:
        yield ("heartbeat", "url"), model.heartbeat.url


def _check_credential(judge: Judge, path: Place, name: str, etc: Path, environ: Mapping[str, str]) -> None:
    if not credential_exists(name, etc, environ):
        judge.say("credential-missing", path, warn=True, name=name, where=credential_file(name, etc))
