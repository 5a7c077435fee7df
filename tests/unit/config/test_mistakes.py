"""Each file of tests/config holds one mistake; `bandog check` says its one right line about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from bandog.cli.check import check
from bandog.config import PluginCatalogue, Problem, load
from bandog.config.layers import read_source, shipped_policies_dir
from bandog.config.schema import MODELS
from bandog.config.single import check_file
from bandog.config.texts import TEXTS
from bandog.config.translate import models_at
from bandog.host.paths import Paths

FOLDER = Path(__file__).parents[2] / "config"
CASES = sorted(one.name for one in FOLDER.iterdir())


def expected(case: Path) -> str:
    """Return the line that the case asks for, with what depends on this machine filled in."""
    file = case if case.is_file() else case / "bandog.yaml"
    first = file.read_bytes().split(b"\n", 1)[0].decode()
    assert first.startswith("# expect: "), f"{file}: the first line must be # expect: ..."
    policies = shipped_policies_dir()
    assert policies is not None
    shipped, _ = read_source(policies / "290-xid-unknown.yaml", "shipped")
    assert shipped is not None
    line = first.removeprefix("# expect: ")
    here = str(FOLDER)
    return line.replace("{policies}", str(policies)).replace("{here}", here).replace("{digest}", shipped.digest)


def problems_of(case: str, catalogue: PluginCatalogue) -> tuple[Problem, ...]:
    """Check one case as `bandog check CASE` in that folder does."""
    path = Path(case)
    if path.is_dir():
        return load(Paths(), plugins=catalogue, config_dir=path, environ={}).problems
    return check_file(path, plugins=catalogue, config_dir=None, environ={})


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in messages are relative to the folder. What git checks out has the umask's mode."""
    monkeypatch.chdir(FOLDER)
    (FOLDER / "main-notify-urls-readable.yaml").chmod(0o644)


@pytest.mark.parametrize("case", CASES)
def test_the_mistake_gets_its_one_right_line(case: str, catalogue: PluginCatalogue) -> None:
    assert [str(one) for one in problems_of(case, catalogue)] == [expected(Path(case))]


@pytest.mark.parametrize("case", ["step-unknown-action.yaml", "dir-duplicate-unit", "main-plugins-off-unknown.yaml"])
def test_the_command_prints_that_line_and_fails_for_errors_only(case: str) -> None:
    result = CliRunner().invoke(check, [case])
    assert result.stdout.splitlines() == [expected(Path(case))]
    assert result.exit_code == (0 if "warning: " in result.stdout else 78)


def test_every_text_has_a_file(catalogue: PluginCatalogue) -> None:
    said = {problem.code for case in CASES for problem in problems_of(case, catalogue)}
    assert set(TEXTS) == said


def _parts(path: str) -> list[str | int]:
    return [int(part[1:-1]) if part.startswith("[") else part for part in re.findall(r"\[\d+\]|[^.\[\]]+", path)]


def _keys_at(model: type[BaseModel], path: list[str | int]) -> Iterator[tuple[str, str]]:
    """Yield (model, key) for the last key of `path` that a model declares."""
    for end in range(len(path), 0, -1):
        for owner in models_at(model, tuple(path[: end - 1])):
            if path[end - 1] in {field.alias or name for name, field in owner.model_fields.items()}:
                yield owner.__name__, str(path[end - 1])
                return


def _declared(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, str]]:
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        yield model.__name__, field.alias or name
        for path in ((name if not field.alias else field.alias,), (field.alias or name, 0)):
            for inner in models_at(model, path) | models_at(model, (*path, "x")):
                yield from _declared(inner, seen)


def test_every_key_of_the_schemas_has_a_file(catalogue: PluginCatalogue) -> None:
    """A mistake at the key itself: a wrong value, or that it is missing."""
    wanted = {key for model in MODELS.values() for key in _declared(model, set())}
    shown: set[tuple[str, str]] = set()
    for case in CASES:
        for problem in problems_of(case, catalogue):
            missing = re.match(r'key "(\w+)" is missing', problem.message)
            path = _parts(problem.path) + ([missing[1]] if missing else [])
            for model in MODELS.values():
                shown.update(_keys_at(model, path))
    assert wanted - shown == set()
