"""The words that a value can be."""

from __future__ import annotations

from datetime import time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from bandog.config import values
from bandog.config.types import parse_duration
from bandog.domain.policy import Rate


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("24h", 86400), ("7d", 604800), ("1h30m", 5400), ("250ms", 0.25)]
)
def test_durations_are_numbers_with_units(text: str, seconds: float) -> None:
    assert values.read_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("bad", ["", "10", "10 min", 10, None, "1y", "-1s", "9" * 400 + "d", "10m x"])
def test_anything_else_is_no_duration(bad: object) -> None:
    with pytest.raises(PydanticCustomError, match="is no duration"):
        values.read_duration(bad)


def test_a_rate_is_a_count_per_time_and_a_count_one_within_time() -> None:
    assert values.read_rate("5 per 1h") == Rate(count=5, per=timedelta(hours=1))
    assert values.read_count("3 within 10m") == Rate(count=3, per=timedelta(minutes=10))
    for bad in ("0 per 1h", "5 per 0s", "5 per", "per 1h", "5/1h", "5 per soon", 5):
        with pytest.raises(PydanticCustomError):
            values.read_rate(bad)


def test_sizes_are_bytes() -> None:
    assert values.read_size("32MiB") == 32 << 20
    assert values.read_size("10 KiB") == 10240
    for bad in ("1G", "-1MiB", "1.5GiB", "MiB", 5):
        with pytest.raises(PydanticCustomError):
            values.read_size(bad)


def test_a_gpu_is_written_in_any_spelling_and_kept_in_one() -> None:
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert values.read_gpus(["00000000:E5:00.0", "0000:17:00", uuid]) == ("0000:e5:00.0", "0000:17:00.0", uuid)
    assert values.read_gpus("all") == "all"


def test_a_time_of_day_has_two_digits_each() -> None:
    assert values.read_time("02:05") == time(2, 5)
    for bad in ("2:05", "24:00", "02:60", "2am", 205):
        with pytest.raises(PydanticCustomError):
            values.read_time(bad)


@pytest.mark.parametrize("bad", ["../../etc/passwd", "/etc/localtime", "", "Europe", "Nowhere/Land", "a\0b", None, 1])
def test_a_time_zone_is_a_name_of_the_database(bad: object) -> None:
    with pytest.raises(PydanticCustomError, match="unknown time zone"):
        values.read_zone(bad)


def test_a_wrong_notification_url_is_not_repeated_in_full() -> None:
    with pytest.raises(PydanticCustomError) as error:
        values.read_secret_url("mailto:operator:hunter2-password@example.org")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "good", ["credential:oncall", "file:/root/urls", "mailtos://u:p@example.org", "tgram://token/chat", "json://h:8/x"]
)
def test_a_target_is_a_credential_a_file_or_an_apprise_url(good: str) -> None:
    assert values.read_secret_url(good) == good


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (
        values.read_duration, values.read_rate, values.read_count, values.read_size, values.read_mode,
        values.read_time, values.read_url, values.read_secret_url, values.read_path, values.read_tcp,
        values.read_gpus, values.word("name", values.NAME_PATTERN), values.word("unit", values.UNIT_PATTERN),
    ):  # fmt: skip
        try:
            read(text)
        except PydanticCustomError as error:
            assert "\n" not in str(error)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=999)))
def test_a_formatted_duration_reads_back(value: timedelta) -> None:
    from bandog.domain.policy import format_duration

    whole = timedelta(seconds=int(value.total_seconds()))
    assert parse_duration(format_duration(whole)) == whole
