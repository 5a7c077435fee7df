"""The JSON Schema that editors use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from bandog.cli.schema import schema
from bandog.config.models import MainModel, PolicyModel, ServiceModel

TOP = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kind", "model", "required"),
    [
        ("main", MainModel, []),
        ("policy", PolicyModel, ["policy", "match"]),
        ("service", ServiceModel, ["service", "unit"]),
    ],
)
def test_a_schema_lists_the_keys_and_refuses_others(kind: str, model: type[BaseModel], required: list[str]) -> None:
    printed = json.loads(CliRunner().invoke(schema, [kind]).stdout)
    assert set(printed["properties"]) == set(model.model_fields)
    assert printed["additionalProperties"] is False
    assert printed.get("required", []) == required


def test_every_key_is_spelt_as_it_is_written() -> None:
    text = CliRunner().invoke(schema, ["main"]).stdout + CliRunner().invoke(schema, ["policy"]).stdout
    assert '"from"' in text and '"with"' in text and "from_" not in text and "with_" not in text


def test_no_key_is_called_on() -> None:
    for kind in ("main", "policy", "service"):
        assert '"on":' not in CliRunner().invoke(schema, [kind]).stdout


def test_another_kind_is_a_usage_error() -> None:
    assert CliRunner().invoke(schema, ["plugin"]).exit_code == 2


@pytest.mark.parametrize("file", [*sorted((TOP / "policies").glob("*.yaml")), TOP / "packaging/bandog.yaml"], ids=str)
def test_shipped_files_tell_editors_their_schema(file: Path) -> None:
    kind = "main" if file.name == "bandog.yaml" else "policy"
    first = file.read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema=/usr/share/bandog/schema/{kind}.json"
