"""JSON, both ways, for every value that travels through bandog or is stored."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

_AS_THEY_ARE = frozenset({str, int, float, bool, type(None)})


def to_json(value: Any) -> Any:
    """Return `value` as JSON types: dataclasses as objects, timedelta as seconds, datetime as ISO 8601.

    Everything that is stored goes through here, on the loop, so the frequent types come first.
    """
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:
        return value
    names = _names_of(kind)
    if names is not None:
        return {key: to_json(getattr(value, name)) for key, name in names}
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [to_json(item) for item in value]
    raise TypeError(f"{kind.__name__} has no JSON form")


@functools.lru_cache(maxsize=256)
def _names_of(kind: Any) -> tuple[tuple[str, str], ...] | None:
    """Return (key in JSON, field) of a dataclass, None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((one.name.rstrip("_"), one.name) for one in dataclasses.fields(kind))


def from_json(kind: type[T], data: Any) -> T:
    """Rebuild a value of `kind` from what `to_json` made. Unknown keys are ignored (an older reader).

    Raises TypeError, ValueError or KeyError when `data` does not fit.
    """
    return typing.cast("T", _build(kind, data))


def _build(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is types.UnionType:
        return _build_union(typing.get_args(kind), data)
    if kind is Any:
        return data
    if origin is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_build(item, part) for part in data)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        item = typing.get_args(kind)[1]
        return types.MappingProxyType({name: _build(item, part) for name, part in data.items()})
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return kind(data)
        if kind is timedelta or kind is datetime:
            return _build_time(kind, data)
        if dataclasses.is_dataclass(kind):
            return _build_dataclass(kind, data)
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return data
        if not isinstance(data, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(data).__name__}")
    return data


def _build_time(kind: type[timedelta] | type[datetime], data: Any) -> timedelta | datetime:
    try:
        if kind is timedelta:
            return timedelta(seconds=data)
        return datetime.fromisoformat(data).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{data!r:.40} is no time") from error


def _build_union(options: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        return None
    if isinstance(data, list):
        return tuple(data)
    for option in options:
        if option is type(None):
            continue
        try:
            return _build(option, data)
        except (TypeError, ValueError, KeyError):
            continue
    raise TypeError(f"no form fits {type(data).__name__}")


def _build_dataclass(kind: type[Any], data: Any) -> Any:
    hints = typing.get_type_hints(kind)
    values = {}
    for item in dataclasses.fields(kind):
        name = item.name.rstrip("_")
        if name in data:
            values[item.name] = _build(hints[item.name], data[name])
    return kind(**values)
