"""Reads the whole configuration, or single files of it, and reports every problem at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..domain.covering import covered
from ..domain.policy import Policy
from ..host.paths import Paths
from ..services.registry import Service
from .build import build_config, build_policy, build_service
from .catalogue import PluginCatalogue
from .checks import check_main, check_policy, check_service, secret_urls
from .layers import Source, lay_over, merge, read_folder, read_source, shipped_policies_dir
from .models import MainModel, Model, PolicyModel, ServiceModel
from .problems import Problem, in_order, quote
from .settings import Config, Loaded
from .translate import validate
from .yaml12 import Document, read_document

MAIN_FILE = "bandog.yaml"
M = TypeVar("M", bound=Model)


def load(
    paths: Paths,
    *,
    plugins: PluginCatalogue,
    config_dir: Path | None = None,
    policies_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read main file, policies and services; blocking, called at start, at reload and by `check`.

    `config_dir` replaces `/etc/bandog`, `policies_dir` the place of the shipped policies. Never
    raises: what is wrong is in `Loaded.problems`.
    """
    reading = Reading(
        etc=config_dir or paths.etc,
        plugins=plugins,
        environ=os.environ if environ is None else environ,
    )
    reading.main_file()
    reading.policies(shipped_policies_dir(policies_dir))
    reading.services()
    return reading.result()


@dataclass(slots=True, kw_only=True)
class Reading:
    """What has been read so far; each method reads one part."""

    etc: Path
    plugins: PluginCatalogue
    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    main: MainModel | None = None
    safe_main: MainModel = field(default_factory=MainModel)
    good_policies: list[Policy] = field(default_factory=list)
    good_services: list[Service] = field(default_factory=list)
    shipped_targets: dict[str, None] = field(default_factory=dict)

    def main_file(self) -> None:
        """Read `bandog.yaml` and `conf.d`."""
        sources, found = read_folder(self.etc / "conf.d", "conf.d")
        self.problems += found
        if os.path.lexists(self.etc / MAIN_FILE):
            source, found = read_source(self.etc / MAIN_FILE, MAIN_FILE)
            self.problems += found
            sources = [source, *sources] if source is not None else sources
        documents = []
        for source in sources:
            document, found = read_map(source)
            self.problems += found
            documents.append(document)
        merged = merge(documents)
        self.main, found = judge_main(merged, sources, self.plugins, self.etc, self.environ)
        self.safe_main = self.main or _what_is_right(merged, found)
        self.problems += found

    def policies(self, shipped_dir: Path | None) -> None:
        """Read the shipped policies and, over them, `policies.d`."""
        shipped: list[Source] = []
        if shipped_dir is not None:
            shipped, found = read_folder(shipped_dir, str(shipped_dir), "shipped")
            self.problems += found
        site, found = read_folder(self.etc / "policies.d", "policies.d")
        self.problems += found
        files, found = lay_over(shipped, site)
        self.problems += found
        names: dict[str, str] = {}
        for source in files:
            policy, found = self._policy(source, names)
            self.problems += found
            if policy is not None and not _errors(found):
                self.good_policies.append(policy)
        self.problems += _never_reached(self.good_policies)
        for name in self.shipped_targets:
            self.problems.append(Problem.of("nobody-told", MAIN_FILE, is_warning=True, name=name))

    def _policy(self, source: Source, names: dict[str, str]) -> tuple[Policy | None, list[Problem]]:
        document, found = read_document(source.data, source.shown)
        if found or document.value is None:
            return None, found
        policy, found = judge_policy(document, source.layer, self.plugins, self.main)
        if source.layer == "shipped":
            # Nobody has named their targets before the first install: said once, not for each policy.
            unknown = [one for one in found if one.code == "unknown-target"]
            found = [one for one in found if one.code != "unknown-target"]
            if unknown and policy is not None and self.main is not None:
                self.shipped_targets.update(dict.fromkeys({*policy.notify} - {*self.main.notify}))
        if policy is not None:
            _claim(names, policy.name, document, "policy", "duplicate-policy", found, {"name": policy.name})
        return policy, found

    def services(self) -> None:
        """Read `services.d`."""
        sources, found = read_folder(self.etc / "services.d", "services.d")
        self.problems += found
        names: dict[str, str] = {}
        units: dict[str, str] = {}
        owners: dict[str, str] = {}
        for source in sources:
            document, found = read_document(source.data, source.shown)
            if not found and document.value is None:
                found = [Problem.of("empty-service", source.shown)]
            if found:
                self.problems += found
                continue
            service, found = judge_service(document, self.plugins, self.etc, self.environ)
            if service is not None:
                name, unit = service.name, service.unit
                _claim(names, name, document, "service", "duplicate-service", found, {"name": name})
                _claim(units, unit, document, "unit", "duplicate-unit", found,
                       {"unit": unit, "name": owners.get(unit, "")})  # fmt: skip
                owners.setdefault(unit, name)
            self.problems += found
            if service is not None and not _errors(found):
                self.good_services.append(service)

    def result(self) -> Loaded:
        """Return what it all came to."""

        def config(main: MainModel) -> Config:
            return build_config(
                main,
                plugins=_plugins(main, self.plugins),
                policies=tuple(self.good_policies),
                services=tuple(self.good_services),
            )

        problems = in_order(self.problems)
        if self.main is not None and not _errors(problems):
            return Loaded(config=config(self.main), problems=problems)
        salvaged = config(self.safe_main.model_copy(update={"mode": "observe"}))
        return Loaded(config=None, problems=problems, salvaged=salvaged)


def _claim(
    taken: dict[str, str],
    name: str,
    document: Document,
    key: str,
    code: str,
    found: list[Problem],
    values: dict[str, Any],
) -> None:
    if name in taken:
        _, place = document.where((key,))
        found.append(Problem.of(code, document.file, place=place, path=(key,), other=taken[name], **values))
    taken.setdefault(name, document.file)


def _never_reached(policies: Sequence[Policy]) -> Iterator[Problem]:
    """Yield a warning for each policy of the site that an earlier one leaves nothing to."""
    for policy, first in covered(policies):
        if policy.layer == "site":
            yield Problem.of(
                "never-reached",
                policy.file,
                place=(policy.line, 1),
                path=("policy",),
                is_warning=True,
                name=policy.name,
                other=first.file,
            )


def _errors(problems: Sequence[Problem]) -> bool:
    return any(not one.is_warning for one in problems)


def _plugins(main: MainModel, plugins: PluginCatalogue) -> dict[str, Mapping[str, Any] | str]:
    known = {*plugins.options, *plugins.plugins}
    chosen: dict[str, Mapping[str, Any] | str] = {
        name: value
        for name, value in main.plugins.items()
        if value == "off" or (name in known and isinstance(value, dict))
    }
    own = chosen.get("evidence", {})
    limits = main.evidence.model_dump(exclude_none=True)
    if limits and "evidence" in plugins.options and not isinstance(own, str):
        chosen["evidence"] = {**limits, **own}
    return chosen


def _what_is_right(document: Document, problems: Sequence[Problem]) -> MainModel:
    """Return the main file without the keys that something is wrong with."""
    wrong = {one.path.split(".")[0].split("[")[0] for one in problems if not one.is_warning}
    kept = {key: value for key, value in document.value.items() if key in MainModel.model_fields and key not in wrong}
    return validate(MainModel, Document(file=document.file, value=kept)).partial or MainModel()


def read_map(source: Source) -> tuple[Document, list[Problem]]:
    """Read one document whose top is a map (or which is empty)."""
    document, found = read_document(source.data, source.shown)
    if not found and document.value is not None and not isinstance(document.value, dict):
        _, place = document.where(())
        found = [Problem.of("not-a-map", source.shown, place=place, value=quote(document.value))]
        document.value = None
    return document, found


def judge_main(
    document: Document,
    sources: Sequence[Source],
    plugins: PluginCatalogue,
    etc: Path,
    environ: Mapping[str, str],
) -> tuple[MainModel | None, list[Problem]]:
    """Check the merged main file; `sources` are the files that it was made of."""
    fit = validate(MainModel, document)
    found, model = fit.problems, fit.partial
    if model is None:
        return None, found
    found += check_main(document, model, plugins, etc, environ)
    open_files = {source.shown for source in sources if source.readable_by_others}
    for path, url in secret_urls(document, model):
        file, _ = document.where(path)
        if file in open_files and not url.startswith(("credential:", "file:")):
            open_files.discard(file)
            found.append(Problem.of("secret-readable", file, is_warning=True, name=file))
    return (None if _errors(found) else model), found


def judge_policy(
    document: Document, layer: str, plugins: PluginCatalogue, main: MainModel | None
) -> tuple[Policy | None, list[Problem]]:
    """Check one policy file. Without `main`, targets and windows are not judged."""
    fit = validate(PolicyModel, document)
    if fit.partial is not None:
        fit.problems.extend(check_policy(document, fit.partial, plugins, main, layer))
    if fit.model is None:
        return None, fit.problems
    _, place = document.where(("policy",), key=True)
    policy = build_policy(fit.model, file=document.file, line=place[0], layer=layer)
    return policy, fit.problems


def judge_service(
    document: Document, plugins: PluginCatalogue, etc: Path, environ: Mapping[str, str]
) -> tuple[Service | None, list[Problem]]:
    """Check one service file."""
    fit = validate(ServiceModel, document)
    if fit.partial is not None:
        fit.problems.extend(check_service(document, fit.partial, plugins, etc, environ))
    if fit.model is None:
        return None, fit.problems
    return build_service(fit.model, file=document.file), fit.problems
