"""The canary over a real connection, against a server that behaves and misbehaves as vLLM does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from bandog import CanaryAnswer
from bandog.host.clock import SystemClock
from bandog.host.http import HttpClient
from bandog.host.paths import Paths
from bandog.services.canary import ask
from simhost.sink import free_port
from simhost.vllm import FakeVllm

KEY = "tok-4711-abcdef"


class Host:
    """The real clock and the real client."""

    clock = SystemClock(Paths())
    http = staticmethod(HttpClient().request)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeVllm]:
    one = FakeVllm(tmp_path_factory.mktemp("vllm"), "--api-key", KEY)
    try:
        yield one.ready()
    finally:
        one.close()


def sing(server: FakeVllm | str, *, key: str = KEY, within: float = 10.0, model: str = "auto") -> CanaryAnswer:
    url = server if isinstance(server, str) else server.url
    canary = {"openai": url, "model": model, "credential": "qwen-key"}
    return ask(canary, Host(), lambda _: key, deadline=timedelta(seconds=within))


def test_a_model_that_answers_sings(server: FakeVllm) -> None:
    server.mode("normal")
    answer = sing(server)
    assert (answer.ok, answer.model, answer.tokens) == (True, "qwen", 8)
    assert timedelta() < answer.took < timedelta(seconds=10)
    assert sing(server, model="qwen").ok is True
    assert sing(server, model="llama").why == '/v1/models lists "qwen", not "llama"'


def test_a_wrong_key_is_named_and_not_shown(server: FakeVllm) -> None:
    answer = sing(server, key="tok-0815-wrong")
    assert (answer.ok, answer.why) == (None, '/v1/models: HTTP 401: credential "qwen-key" is not accepted')


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("text", "the answer is no JSON"),
        ("html", "the answer is no JSON"),
        ("none", "the answer is no JSON"),
        ("short", "the answer is no JSON"),
        ("empty", "the list of choices is empty"),
        ("blank", "a choice without text or tokens"),
        ("huge", "an answer of 1 MiB or more"),
        ("redirect", "HTTP 302: redirects are not followed"),
        ("error", "HTTP 500"),
    ],
)
def test_rubbish_is_a_wrong_answer(server: FakeVllm, kind: str, why: str) -> None:
    server.mode("rubbish", kind)
    answer = sing(server)
    assert (answer.ok, answer.why) == (False, f"/v1/completions: {why}")


def test_one_byte_a_second_is_no_answer(server: FakeVllm) -> None:
    server.mode("rubbish", "drip")
    answer = sing(server, within=0.5)
    assert (answer.ok, answer.why) == (None, "/v1/completions: no answer within 0.5 s")
    assert answer.took < timedelta(seconds=5)


def test_a_stall_is_no_answer(server: FakeVllm) -> None:
    server.mode("stall")
    assert sing(server, within=0.5).ok is None
    server.mode("normal")
    assert sing(server).ok is True


def test_a_server_that_is_down_refuses() -> None:
    answer = sing(f"http://127.0.0.1:{free_port()}")
    assert (answer.ok, answer.why) == (None, "connection refused")
