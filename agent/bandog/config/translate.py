"""Runs a model over what was read and says in our own words what does not fit, and where."""

from __future__ import annotations

import copy
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .models import Model
from .problems import Path, Problem, hint, quote
from .yaml12 import Document

M = TypeVar("M", bound=BaseModel)

# pydantic's error type → (code of ours, name of its context value, our name for that)
_LIMITS = {
    "greater_than_equal": ("too-small", "ge", "least"),
    "greater_than": ("too-small", "gt", "least"),
    "less_than_equal": ("too-large-number", "le", "most"),
    "less_than": ("too-large-number", "lt", "most"),
}
_WANTED = {
    "string_type": "text-wanted",
    "int_type": "number-wanted",
    "int_from_float": "number-wanted",
    "int_parsing": "number-wanted",
    "float_type": "float-wanted",
    "float_parsing": "float-wanted",
    "bool_type": "bool-wanted",
    "bool_parsing": "bool-wanted",
    "list_type": "list-wanted",
    "tuple_type": "list-wanted",
    "dict_type": "not-a-map",
    "model_type": "not-a-map",
    "model_attributes_type": "not-a-map",
    "union_tag_not_found": "fact-test",
}
_EXAMPLES = {
    "policy": "write policy: NAME",
    "service": "write service: NAME",
    "match": "write match: {kind: ...}",
    "kind": "write the kind of finding that it is about, like kind: nvidia.xid",
    "do": "write the action, like do: restart",
    "unit": "write the unit's full name, like unit: vllm.service",
}


@dataclass(frozen=True, slots=True)
class Fit(Generic[M]):
    """How a document fits a model: `model` if it does, else `partial` for what can still be judged."""

    model: M | None
    partial: M | None
    problems: list[Problem]


def validate(model: type[M], document: Document, *, at: Path = (), ignore_names: bool = False) -> Fit[M]:
    """Fit the part of `document` at `at` into `model`; report each thing that does not fit at its place.

    With `ignore_names`, text that holds a `$` is not judged: what it becomes is known later.
    """
    raw = _part(document.value, at)
    if raw is None and at:
        raw = {}  # a part that is left out is an empty one
    fitted, details = _try(model, raw)
    if fitted is not None:
        return Fit(fitted, fitted, [])
    problems = []
    for detail in details:
        path = _path(raw, detail)
        value = _part(raw, path) if detail["type"] != "missing" else None
        if ignore_names and isinstance(value, str) and "$" in value:
            continue
        problems.append(_problem(model, document, at, path, detail, value))
    return Fit(None, _partial(model, raw, details), list(dict.fromkeys(problems)))


def _try(model: type[M], raw: Any) -> tuple[M | None, list[ErrorDetails]]:
    try:
        if issubclass(model, Model):
            return model.model_validate_json(json.dumps(raw)), []
        return model.model_validate(raw), []  # a plugin's own model: exactly what its author will get
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _partial(model: type[M], raw: Any, details: list[ErrorDetails]) -> M | None:
    """Return what is left of `raw` without the keys that something is wrong with, if that is enough."""
    raw = copy.deepcopy(raw)
    for _ in range(4):  # what is missing now may make the map around it unfit: one level a round
        for path, detail in [(_path(raw, detail), detail) for detail in details]:
            keys = [end for end, step in enumerate(path) if isinstance(step, str)]
            if detail["type"] == "missing":
                keys.pop()
            if not keys:
                return None
            around = _part(raw, path[: keys[-1]])
            if isinstance(around, dict):
                around.pop(path[keys[-1]], None)
        fitted, details = _try(model, raw)
        if fitted is not None:
            return fitted
    return None


def _problem(
    model: type[BaseModel], document: Document, at: Path, path: Path, detail: ErrorDetails, value: Any
) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    full = (*at, *path)
    if kind == "extra_forbidden":
        file, place = document.where(full, key=True)
        key = str(path[-1])
        known = hint(key, _keys(model, path[:-1]))
        return Problem.of("unknown-key", file, place=place, path=full[:-1], key=key, hint=known)
    if kind == "missing":
        file, place = document.where(full[:-1])
        key = str(path[-1])
        example = _EXAMPLES.get(key, f"write {key}: ...")
        return Problem.of("missing-key", file, place=place, path=full[:-1], key=key, example=example)
    file, place = document.where(full)
    if kind == "bandog":
        return Problem(
            file=file, line=place[0], column=place[1], path=Problem.of("empty", file, path=full).path,
            code=context["code"], message=context["message"],
        )  # fmt: skip
    code, values = _words(kind, context, detail, value)
    return Problem.of(code, file, place=place, path=full, **values)


def _words(kind: str, context: dict[str, Any], detail: ErrorDetails, value: Any) -> tuple[str, dict[str, Any]]:
    if kind in _LIMITS:
        code, theirs, ours = _LIMITS[kind]
        return code, {ours: context[theirs], "value": quote(value)}
    if kind in _WANTED:
        return _WANTED[kind], {"value": quote(value)}
    if kind in ("literal_error", "enum"):
        wanted = context["expected"].replace("'", "")
        names = wanted.replace(" or ", ", ").split(", ")
        near = hint(value, names) if isinstance(value, str) else ""
        known = near if "did you mean" in near else ""
        return "one-of", {
            "wanted": wanted.lower() if wanted == "True" else wanted,
            "value": quote(value),
            "hint": known,
        }
    if kind in ("too_short", "string_too_short"):
        return "empty", {}
    return "option", {"why": detail["msg"].removeprefix("Value error, ")}


def _part(raw: Any, path: Path) -> Any:
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _path(raw: Any, detail: ErrorDetails) -> Path:
    """Return the place of an error in the document: pydantic's, without the names of union members."""
    path: list[str | int] = []
    location = [step for step in detail["loc"] if step != "[key]"]
    for number, step in enumerate(location):
        if _holds(raw, step):
            raw = raw[step]
        elif not (detail["type"] == "missing" and number == len(location) - 1):
            continue
        path.append(step)
    return tuple(path)


def _holds(raw: Any, step: int | str) -> bool:
    if isinstance(raw, dict):
        return step in raw
    return isinstance(raw, list) and isinstance(step, int) and step < len(raw)


def _keys(model: type[BaseModel], path: Path) -> set[str]:
    """Return the keys that are known at `path` below `model`."""
    found: set[str] = set()
    for one in models_at(model, path):
        found |= {field.alias or name for name, field in one.model_fields.items()}
    return found


def models_at(annotation: Any, path: Path) -> set[type[BaseModel]]:
    """Return the models that may stand at `path` below a model or type annotation."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return models_at(arguments[0], path)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(models_at(one, path) for one in arguments))
    if origin in (list, tuple, dict) and path:
        return models_at(arguments[1] if origin is dict else arguments[0], path[1:])
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return set()
    if not path:
        return {annotation}
    for name, field in annotation.model_fields.items():
        if (field.alias or name) == path[0]:
            return models_at(field.annotation, path[1:])
    return set()
