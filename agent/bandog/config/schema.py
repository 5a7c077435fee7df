"""The JSON Schema of each kind of file, made from the models, for editors."""

from __future__ import annotations

from typing import Any

from .models import MainModel, Model, PolicyModel, ServiceModel

MODELS: dict[str, type[Model]] = {"main": MainModel, "policy": PolicyModel, "service": ServiceModel}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `main`, `policy` or `service`; KeyError for others."""
    return {"$schema": DIALECT, **MODELS[name].model_json_schema(by_alias=True)}
