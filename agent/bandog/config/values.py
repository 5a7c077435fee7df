"""The words that a configuration value can be: limits, sizes, modes, names, times of day.

Each type reads the plain value, raises one of our own texts, and shows its form in the JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import time, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..domain import subjects
from ..domain.policy import Rate
from ..services.env_file import NAME, is_ours, is_value
from .problems import quote, text
from .types import DURATION_PATTERN, parse_duration

_SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d{1,9})\s*(B|KiB|MiB|GiB|TiB)\Z")
_RATE = re.compile(r"(\d{1,9})\s+per\s+(\S.*)\Z")
_COUNT = re.compile(r"(\d{1,9})\s+within\s+(\S.*)\Z")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\Z")
_TCP = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})\Z")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_SECRET_URL = re.compile(r"credential:[A-Za-z0-9][A-Za-z0-9._-]*\Z|file:/[^/].*\Z|(?!file:)[a-z][a-z0-9+.]*://\S+\Z")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
UNIT_PATTERN = r"^[A-Za-z0-9:_.\\@-]{1,240}\.service$"


def refuse(code: str, **values: Any) -> PydanticCustomError:
    """Return the error that carries the text `code` through pydantic."""
    message = text(code, **values)
    # Braces in it would be taken for placeholders.
    return PydanticCustomError("bandog", "{message}", {"message": message, "code": code})


def word(code: str, pattern: str) -> Callable[[Any], str]:
    """Return a reader of text that matches `pattern`, refusing anything else with `code`."""
    compiled = re.compile(pattern.removesuffix("$") + r"\Z")

    def read(value: Any) -> str:
        if not isinstance(value, str) or compiled.match(value) is None:
            raise refuse(code, value=quote(value))
        return value

    return read


_unit = word("unit", UNIT_PATTERN)
_env_name = word("env-name", NAME.pattern.removesuffix(r"\Z") + "$")
_OUR_UNITS = re.compile(r"bandog(-[a-z-]+)?\.service\Z")


def read_unit(value: Any) -> str:
    """Read a service unit that can be started, and is none of our own."""
    unit = _unit(value)
    if unit.endswith("@.service"):
        raise refuse("unit-template", value=quote(unit), instance=unit.replace("@", "@NAME"))
    if _OUR_UNITS.match(unit):
        raise refuse("unit-ours", value=quote(unit))
    return unit


def read_duration(value: Any) -> timedelta:
    """Read a duration, refusing with our own text."""
    try:
        return parse_duration(value)
    except (ValueError, OverflowError) as error:
        raise refuse("duration", value=quote(value)) from error


def _read_rate(code: str, pattern: re.Pattern[str], value: Any) -> Rate:
    match = pattern.match(value) if isinstance(value, str) else None
    if match is None or int(match[1]) < 1:
        raise refuse(code, value=quote(value))
    try:
        per = parse_duration(match[2])
    except (ValueError, OverflowError) as error:
        raise refuse(code, value=quote(value)) from error
    if per <= timedelta():
        raise refuse(code, value=quote(value))
    return Rate(count=int(match[1]), per=per)


def read_rate(value: Any) -> Rate:
    """Read `5 per 1h`."""
    return _read_rate("rate", _RATE, value)


def read_count(value: Any) -> Rate:
    """Read `3 within 10m`: a leaky bucket."""
    return _read_rate("count", _COUNT, value)


def read_size(value: Any) -> int:
    """Read `32MiB` as bytes."""
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise refuse("size", value=quote(value))
    return int(match[1]) * _SIZES[match[2]]


def read_mode(value: Any) -> str | tuple[str, ...]:
    """Read observe, enforce or a list of action names (checked later against what is loaded)."""
    if value in ("observe", "enforce"):
        return str(value)
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise refuse("mode", value=quote(value))


def read_time(value: Any) -> time:
    """Read `02:00`."""
    match = _TIME.match(value) if isinstance(value, str) else None
    if match is None:
        raise refuse("time", value=quote(value))
    return time(int(match[1]), int(match[2]))


def read_zone(value: Any) -> ZoneInfo:
    """Read the name of a time zone of the tz database."""
    try:
        if isinstance(value, str):
            return ZoneInfo(value)
    # zoneinfo opens a file by this name: whatever it meets there, it is no zone of ours.
    except (ValueError, OSError, KeyError) as error:
        raise refuse("zone", value=quote(value)) from error
    raise refuse("zone", value=quote(value))


def read_url(value: Any) -> str:
    """Read an HTTP URL."""
    if isinstance(value, str) and re.match(r"https?://[^\s/]+", value) and not re.search(r"\s", value):
        return value
    raise refuse("url", value=quote(value))


def read_secret_url(value: Any) -> str:
    """Read `credential:NAME`, `file:/PATH` or a literal URL. What is wrong may be a secret: show little."""
    if isinstance(value, str) and _SECRET_URL.match(value):
        return value
    shown = value[:8] + "..." if isinstance(value, str) and len(value) > 12 else value
    raise refuse("notify-url", value=quote(shown))


def read_path(value: Any) -> str:
    """Read an absolute path."""
    if isinstance(value, str) and value.startswith("/"):
        return value
    raise refuse("absolute-path", value=quote(value))


def read_tcp(value: Any) -> str:
    """Read `host:port`."""
    match = _TCP.match(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[1]) < 65536:
        raise refuse("tcp", value=quote(value))
    return str(value)


def read_gpus(value: Any) -> str | tuple[str, ...]:
    """Read "all" or a list of PCI addresses (into their one spelling) and UUIDs."""
    if value == "all":
        return "all"
    if not isinstance(value, list):
        raise refuse("gpu", value=quote(value))
    return tuple(_read_gpu(one) for one in value)


def _read_gpu(value: Any) -> str:
    if isinstance(value, str):
        if _UUID.match(value):
            return value
        try:
            return subjects.pci_address(value)
        except ValueError:
            pass  # refused below, in our words
    raise refuse("gpu", value=quote(value))


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _text_or_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def read_env_name(value: Any) -> str:
    """Read the name of a variable that a profile may set."""
    name = _env_name(value)
    if is_ours(name):
        raise refuse("env-ours", value=quote(name))
    return name


def read_env_value(value: Any) -> Any:
    """Read a variable's value; a number is text. What is neither is refused by its type."""
    given = _text_or_number(value)
    if isinstance(given, str) and not is_value(given):
        raise refuse("env-value", value=quote(given))
    return given


def _form(pattern: str | None = None, *examples: str, **more: Any) -> WithJsonSchema:
    schema: dict[str, Any] = {"type": "string", **more}
    if pattern:
        schema["pattern"] = pattern
    if examples:
        schema["examples"] = list(examples)
    return WithJsonSchema(schema)


_ANY_OF_TEXT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

Duration = Annotated[timedelta, PlainValidator(read_duration), _form(DURATION_PATTERN, "30s", "10m", "24h")]
Limit = Annotated[Rate, PlainValidator(read_rate), _form(r"^\d+\s+per\s+\S", "5 per 1h")]
Count = Annotated[Rate, PlainValidator(read_count), _form(r"^\d+\s+within\s+\S", "3 within 10m")]
Size = Annotated[int, PlainValidator(read_size), _form(r"^\d+\s*(B|KiB|MiB|GiB|TiB)$", "32MiB")]
Mode = Annotated[
    str | tuple[str, ...],
    PlainValidator(read_mode),
    WithJsonSchema({"anyOf": [{"enum": ["observe", "enforce"]}, {"type": "array", "items": {"type": "string"}}]}),
]
Name = Annotated[str, PlainValidator(word("name", NAME_PATTERN)), _form(NAME_PATTERN)]
Unit = Annotated[str, PlainValidator(read_unit), _form(UNIT_PATTERN, "vllm-qwen.service")]
TimeOfDay = Annotated[time, PlainValidator(read_time), _form(_TIME.pattern.replace(r"\Z", "$"), "02:00")]
Zone = Annotated[ZoneInfo, PlainValidator(read_zone), _form(None, "Europe/Berlin", "UTC")]
Url = Annotated[str, PlainValidator(read_url), _form(r"^https?://", "http://127.0.0.1:8000/health")]
SecretUrl = Annotated[str, PlainValidator(read_secret_url), _form(None, "credential:oncall", "file:/root/url")]
AbsolutePath = Annotated[str, PlainValidator(read_path), _form("^/", "/var/lib/x")]
Tcp = Annotated[str, PlainValidator(read_tcp), _form(r":\d+$", "127.0.0.1:8000")]
Gpus = Annotated[
    str | tuple[str, ...],
    PlainValidator(read_gpus),
    WithJsonSchema({"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}}]}),
]
TextList = Annotated[list[str], BeforeValidator(_listed), WithJsonSchema(_ANY_OF_TEXT)]
"""One text, or a list of them."""
SecretUrls = Annotated[list[SecretUrl], BeforeValidator(_listed), WithJsonSchema(_ANY_OF_TEXT)]
EnvName = Annotated[str, PlainValidator(read_env_name), _form(None, "TP_SIZE")]
EnvValue = Annotated[str, BeforeValidator(read_env_value), WithJsonSchema({"type": ["string", "integer"]})]
