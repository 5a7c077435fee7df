"""Secrets appear in no log line, no error and no crash text."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.runtime.secrets import MaskingFilter, Secrets, guard_crashes


@pytest.mark.parametrize(
    ("url", "quoted"),
    [
        ("mailto://bot:hunter2x@mail.example/?to=a@example.com", "hunter2x"),
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops", "TIiajkdnlazkcOXrIdevi7FQ"),
        ("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", "JHMHI8qBe7bk2ZwO5U711o3dV_js"),
        ("tgram://123456789:abcdefg_hijklmnop/12315544/", "abcdefg_hijklmnop"),
        ("jsons://host.example/hook?token=shh1", "shh1"),
        ("https://hc-ping.com/5c9b7a3e-1111-2222-3333-444455556666", "5c9b7a3e-1111-2222-3333-444455556666"),
        ("mailto://bot:p%40ss%20word@mail.example", "p@ss word"),
    ],
)
def test_a_url_and_its_secret_parts_are_masked(url: str, quoted: str) -> None:
    secrets = Secrets()
    secrets.add_url(url)
    masked = secrets.mask(f"cannot reach {url}: server said {quoted}!")
    assert quoted not in masked
    assert "cannot reach" in masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("json://user:pw@10.0.0.1/x failed", "json://*** failed"),
        ("http://user:pw@10.0.0.1/health refused", "http://***@10.0.0.1/health refused"),
        ("http://127.0.0.1:8000/health refused", "http://127.0.0.1:8000/health refused"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("api_key=abcdef&x=1", "api_key=***&x=1"),
        ("task VLLM::Worker:1234 blocked", "task VLLM::Worker:1234 blocked"),
        ("gpu 0000:e5:00.0 token ring", "gpu 0000:e5:00.0 token ring"),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_the_rest_stays(text: str, masked: str) -> None:
    assert Secrets().mask(text) == masked


def test_common_words_of_a_url_do_not_tear_holes_into_every_line() -> None:
    secrets = Secrets()
    secrets.add_url("json://localhost:8080/services/webhook?format=text")
    assert (
        secrets.mask("services start on localhost by webhook as text")
        == "services start on localhost by webhook as text"
    )


@given(st.text(alphabet=st.characters(categories=("L", "N")), min_size=4, max_size=40), st.text(max_size=60))
def test_a_known_secret_is_nowhere_in_the_masked_text(secret: str, around: str) -> None:
    secrets = Secrets()
    secrets.add(secret)
    assert secret not in secrets.mask(f"{around}{secret}{around}").replace("***", "\0")


@given(st.text(max_size=200))
def test_masking_any_text_never_raises(text: str) -> None:
    secrets = Secrets()
    secrets.add_url(text)
    assert isinstance(secrets.mask(text), str)


@pytest.fixture
def logged() -> Iterator[tuple[logging.Logger, io.StringIO, Secrets]]:
    secrets, out = Secrets(), io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(MaskingFilter(secrets))
    logger = logging.getLogger("test.secrets")
    logger.propagate = False
    logger.addHandler(handler)
    yield logger, out, secrets
    logger.removeHandler(handler)


def test_arguments_and_tracebacks_of_a_log_record_are_masked(
    logged: tuple[logging.Logger, io.StringIO, Secrets],
) -> None:
    logger, out, secrets = logged
    secrets.add("hunter2x")
    logger.error("login as %s", "hunter2x")
    try:
        raise ValueError("bad password hunter2x")
    except ValueError:
        logger.exception("it failed")
    assert "hunter2x" not in out.getvalue()
    assert out.getvalue().count("***") >= 2
    assert "Traceback" in out.getvalue()


def test_arguments_that_do_not_fit_lose_no_line(logged: tuple[logging.Logger, io.StringIO, Secrets]) -> None:
    logger, out, _ = logged
    logger.error("%d things", "many")
    assert "its arguments do not fit" in out.getvalue()


def test_crash_text_of_threads_and_of_the_main_thread_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    secrets, out = Secrets(), io.StringIO()
    secrets.add("hunter2x")
    guard_crashes(secrets, out.write)

    def crash() -> None:
        raise ValueError("hunter2x")

    thread = threading.Thread(target=crash)
    thread.start()
    thread.join()
    try:
        crash()
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert out.getvalue().count("ValueError: ***") == 2
    assert "hunter2x" not in out.getvalue()
