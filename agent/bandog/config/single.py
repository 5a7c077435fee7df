"""Checks single files, as an editor or a person in the middle of writing one wants it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .catalogue import PluginCatalogue
from .layers import read_source
from .loading import MAIN_FILE, Reading, judge_main, judge_policy, judge_service, read_map
from .models import MainModel, Model, PolicyModel, ServiceModel
from .problems import Problem, in_order
from .yaml12 import Document


def check_file(
    path: Path,
    *,
    plugins: PluginCatalogue,
    config_dir: Path | None,
    environ: Mapping[str, str],
) -> tuple[Problem, ...]:
    """Return what is wrong with one main file, policy or service; problems name it as it was given.

    A policy's targets and windows are judged by the main file of `config_dir`, or by that of the
    configuration that it lies in, or not at all.
    """
    source, found = read_source(path, str(path))
    if source is None:
        return tuple(found)
    document, found = read_map(source)
    if found:
        return in_order(found)
    around = config_dir or _configuration_around(path)
    etc = around or path.absolute().parent
    model = _model_of(document, path)
    if model is PolicyModel:
        main = _main_of(around, plugins, environ) if around is not None else None
        if document.value is not None:
            found = judge_policy(document, "site", plugins, main)[1]
    elif model is ServiceModel:
        found = [Problem.of("empty-service", str(path))]
        if document.value is not None:
            found = judge_service(document, plugins, etc, environ)[1]
    elif model is MainModel:
        document.value = document.value or {}
        found = judge_main(document, [source], plugins, etc, environ)[1]
    else:
        found = [Problem.of("which-file", str(path))]
    return in_order(found)


def _configuration_around(path: Path) -> Path | None:
    folder = path.absolute().parent
    if folder.name in ("policies.d", "services.d", "conf.d") and (folder.parent / MAIN_FILE).exists():
        return folder.parent
    return None


def _main_of(etc: Path, plugins: PluginCatalogue, environ: Mapping[str, str]) -> MainModel | None:
    reading = Reading(etc=etc, plugins=plugins, environ=environ)
    reading.main_file()
    return reading.main


def _model_of(document: Document, path: Path) -> type[Model] | None:
    """Return which kind of file this is: by its name key, its folder, or most of its keys."""
    keys = set(document.value or ())
    folders: dict[str, type[Model]] = {
        "policies.d": PolicyModel,
        "policies": PolicyModel,
        "services.d": ServiceModel,
        "conf.d": MainModel,
    }
    if "policy" in keys:
        return PolicyModel
    if "service" in keys:
        return ServiceModel
    if path.name == MAIN_FILE or not keys:
        return folders.get(path.absolute().parent.name, MainModel)
    if path.absolute().parent.name in folders:
        return folders[path.absolute().parent.name]
    models: tuple[type[Model], ...] = (MainModel, PolicyModel, ServiceModel)
    best = max(models, key=lambda model: len(keys & set(model.model_fields)))
    return best if keys & set(best.model_fields) else None
