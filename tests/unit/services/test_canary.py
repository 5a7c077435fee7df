"""The canary: tokens are proof, a wrong answer is named, and what could not be learnt is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog import CanaryAnswer, HttpReply
from bandog.services.canary import NoKey, ask
from bandog.services.readiness import ServiceBook
from bandog.services.registry import Ready, Registry, Service
from bandog.testing import FakeHost, FakeSite

BASE = "http://127.0.0.1:8000"
KEY = "tok-4711-abcdef"
MODELS = HttpReply(status=200, body=b'{"data": [{"id": "qwen"}, {"id": "lora"}]}')
TEXT = HttpReply(status=200, body=b'{"choices": [{"text": "9 10"}], "usage": {"completion_tokens": 8}}')
CHAT = HttpReply(status=200, body=b'{"choices": [{"message": {"content": "9"}}]}')


class Server:
    """Answers by path; keeps what it was sent; each answer takes `slow` of the fake clock."""

    def __init__(self, root: Path, *, slow: timedelta = timedelta(), **answers: HttpReply) -> None:
        self.host = FakeHost(root)
        self.clock = self.host.clock
        self.slow = slow
        self.answers = {"/v1/models": MODELS, "/v1/completions": TEXT, **answers}
        self.sent: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.deadlines: list[timedelta] = []

    def http(self, method: str, url: str, **given: Any) -> HttpReply:
        path = url.removeprefix(BASE)
        body = given.get("body")
        self.sent.append((method, path, json.loads(body) if body else None))
        self.headers.append(dict(given.get("headers") or {}))
        self.deadlines.append(given["deadline"])
        self.clock.advance(self.slow)
        return self.answers.get(path, HttpReply(status=404))

    def ask(self, key: Callable[[str], str] = lambda _: KEY, **canary: Any) -> CanaryAnswer:
        return ask({"openai": BASE, "model": "auto", **canary}, self, key, deadline=timedelta(seconds=15))


def answers(**more: HttpReply) -> dict[str, HttpReply]:
    """Return answers by path; `models`, `completions` and `chat` stand for theirs."""
    paths = {"models": "/v1/models", "completions": "/v1/completions", "chat": "/v1/chat/completions"}
    return {paths[name]: reply for name, reply in more.items()}


def test_tokens_are_proof(tmp_path: Path) -> None:
    server = Server(tmp_path, slow=timedelta(seconds=2))
    answer = server.ask()
    assert answer == CanaryAnswer(ok=True, why="qwen answered", model="qwen", took=timedelta(seconds=4), tokens=8)
    assert answer.seconds == 4.0
    assert [(method, path) for method, path, _ in server.sent] == [("GET", "/v1/models"), ("POST", "/v1/completions")]
    assert server.sent[1][2] == {"model": "qwen", "max_tokens": 8, "temperature": 0, "prompt": "1 2 3 4 5 6 7 8"}


def test_the_deadline_is_one_for_the_whole_exchange(tmp_path: Path) -> None:
    server = Server(tmp_path, slow=timedelta(seconds=6), **answers(completions=HttpReply(status=404)))
    server.ask()
    assert [one.total_seconds() for one in server.deadlines] == [15, 9, 3]
    late = Server(tmp_path, slow=timedelta(seconds=15)).ask()
    assert (late.ok, late.why) == (None, "no answer within 15 s")


@pytest.mark.parametrize("base", [BASE, BASE + "/", BASE + "/v1", BASE + "/v1/"])
def test_a_base_url_may_end_as_clients_spell_it(tmp_path: Path, base: str) -> None:
    assert Server(tmp_path).ask(openai=base).ok is True


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_for_chats_only_is_asked_so(tmp_path: Path, status: int) -> None:
    server = Server(tmp_path, **answers(completions=HttpReply(status=status), chat=CHAT))
    answer = server.ask()
    assert (answer.ok, answer.tokens) == (True, None)
    assert server.sent[2][2]["messages"] == [{"role": "user", "content": "1 2 3 4 5 6 7 8"}]


def test_a_named_model_must_be_listed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert server.ask(model="lora").model == "lora"
    wrong = server.ask(model="llama")
    assert (wrong.ok, wrong.why) == (False, '/v1/models lists "qwen", not "llama"')


def test_a_long_name_is_asked_whole_and_told_short(tmp_path: Path) -> None:
    name = "/models/" + "x" * 200
    models = HttpReply(status=200, body=json.dumps({"data": [{"id": name}]}).encode())
    server = Server(tmp_path, **answers(models=models))
    assert len(server.ask().model) == 101
    assert server.sent[1][2]["model"] == name


def test_a_named_model_needs_no_list(tmp_path: Path) -> None:
    server = Server(tmp_path, **answers(models=HttpReply(status=404)))
    assert server.ask(model="llama").ok is True
    assert server.ask().why == "/v1/models: HTTP 404"


@pytest.mark.parametrize(
    ("reply", "ok", "why"),
    [
        (HttpReply(error="refused"), None, "connection refused"),
        (HttpReply(error="timeout"), None, "/v1/completions: no answer within 15 s"),
        (HttpReply(error="Connection reset by peer"), None, "/v1/completions: Connection reset by peer"),
        (HttpReply(status=429), None, "/v1/completions: HTTP 429: it sheds load"),
        (HttpReply(status=302), False, "/v1/completions: HTTP 302: redirects are not followed"),
        (HttpReply(status=500), False, "/v1/completions: HTTP 500"),
        (HttpReply(status=204), False, "/v1/completions: HTTP 204"),
        (HttpReply(status=200, body=b"<html>"), False, "/v1/completions: the answer is no JSON"),
        (HttpReply(status=200, body=b"[" * 200_000), False, "/v1/completions: the answer is no JSON"),
        (HttpReply(status=200, body=b"[]"), False, "/v1/completions: the answer is no JSON object"),
        (HttpReply(status=200, body=b"{}"), False, "/v1/completions: the answer has no choices"),
        (HttpReply(status=200, body=b'{"choices": {}}'), False, "/v1/completions: the answer has no choices"),
        (HttpReply(status=200, body=b'{"choices": []}'), False, "/v1/completions: the list of choices is empty"),
        (
            HttpReply(status=200, body=b'{"choices": [{"text": ""}]}'),
            False,
            "/v1/completions: a choice without text or tokens",
        ),
        (
            HttpReply(status=200, body=b'{"choices": [{}], "usage": {"completion_tokens": true}}'),
            False,
            "/v1/completions: a choice without text or tokens",
        ),
        (HttpReply(status=200, body=b" " * (1 << 20)), False, "/v1/completions: an answer of 1 MiB or more"),
    ],
)
def test_anything_else_is_one_clear_line(tmp_path: Path, reply: HttpReply, ok: bool | None, why: str) -> None:
    answer = Server(tmp_path, **answers(completions=reply)).ask()
    assert (answer.ok, answer.why, answer.tokens) == (ok, why, None)


def test_blanks_that_were_counted_are_tokens(tmp_path: Path) -> None:
    blank = HttpReply(status=200, body=b'{"choices": [{"text": ""}], "usage": {"completion_tokens": 8}}')
    assert Server(tmp_path, **answers(completions=blank)).ask().ok is True


@pytest.mark.parametrize("status", [401, 403])
def test_a_closed_door_names_the_credential(tmp_path: Path, status: int) -> None:
    server = Server(tmp_path, **answers(models=HttpReply(status=status)))
    assert server.ask().why == f"/v1/models: HTTP {status}: canary: needs `credential:` with its API key"
    with_key = server.ask(credential="qwen-key")
    assert (with_key.ok, with_key.why) == (
        None,
        f'/v1/models: HTTP {status}: credential "qwen-key" is not accepted',
    )


def test_the_key_goes_to_the_server_and_nowhere_else(tmp_path: Path) -> None:
    echo = HttpReply(status=200, body=json.dumps({"data": [{"id": f"you sent {KEY}"}]}).encode())
    server = Server(tmp_path, **answers(models=echo, completions=HttpReply(error=f"bad header Bearer {KEY}")))
    answer = server.ask(credential="qwen-key")
    assert [one["Authorization"] for one in server.headers] == [f"Bearer {KEY}"] * 2
    assert answer.ok is None
    assert KEY not in repr(answer)


@pytest.mark.parametrize("key", ["", "two\nlines", "with blank", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_never_sent(tmp_path: Path, key: str) -> None:
    server = Server(tmp_path)
    answer = server.ask(lambda _: key, credential="qwen-key")
    assert (answer.ok, server.sent) == (None, [])
    assert "qwen-key" in answer.why
    assert not key or key not in answer.why


def test_a_key_that_is_not_there_is_said(tmp_path: Path) -> None:
    def none(name: str) -> str:
        raise NoKey("it is empty")

    answer = Server(tmp_path).ask(none, credential="qwen-key")
    assert (answer.ok, answer.why) == (None, 'no API key from credential "qwen-key": it is empty')


# --- whatever a server says -------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
NAMES = st.sampled_from(["choices", "usage", "text", "message", "content", "completion_tokens", "data", "id"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
BODIES = st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode())
REPLIES = st.builds(HttpReply, status=st.integers(100, 599) | st.just(200), body=BODIES)


@given(models=REPLIES | st.just(MODELS), completions=REPLIES)
def test_no_answer_raises_or_is_more_than_a_line(
    tmp_path_factory: pytest.TempPathFactory, models: HttpReply, completions: HttpReply
) -> None:
    root = tmp_path_factory.getbasetemp() / "canary"
    answer = Server(root, **answers(models=models, completions=completions, chat=completions)).ask()
    assert answer.why.isprintable()
    assert len(answer.why) < 200
    if answer.ok:
        said = json.loads(completions.body)
        assert completions.status == 200
        assert said["choices"]
        counted = (said.get("usage") or {}).get("completion_tokens") if isinstance(said.get("usage"), dict) else 0
        texts = json.dumps(said["choices"])
        assert (type(counted) is int and counted > 0) or "text" in texts or "message" in texts


@given(text=st.text(min_size=1, max_size=40), count=st.none() | st.integers(0, 100))
def test_any_text_is_an_answer(tmp_path_factory: pytest.TempPathFactory, text: str, count: int | None) -> None:
    said: dict[str, Any] = {"choices": [{"text": text}]}
    if count is not None:
        said["usage"] = {"completion_tokens": count}
    reply = HttpReply(status=200, body=json.dumps(said).encode())
    answer = Server(tmp_path_factory.getbasetemp() / "canary", **answers(completions=reply)).ask()
    assert (answer.ok, answer.tokens) == (True, count)


# --- in the book of services ------------------------------------------------------------------------


def book(site: FakeSite, **fields: Any) -> ServiceBook:
    service = Service(name="qwen", unit="vllm-qwen.service", ready=Ready(http=BASE + "/health"), **fields)
    return ServiceBook(Registry((service,)), site)


def test_a_service_serves_when_it_is_ready_and_its_canary_sings(tmp_path: Path) -> None:
    site = FakeSite(host=FakeHost(tmp_path))
    replies = {"/health": HttpReply(status=200), "/v1/models": MODELS, "/v1/completions": TEXT}
    site.http_results = lambda method, url: replies[url.removeprefix(BASE)]
    services = book(site, canary={"openai": BASE, "model": "auto"})
    assert services.serves("qwen").why == "HTTP 200; canary: qwen answered"
    replies["/v1/completions"] = HttpReply(error="timeout")
    assert (services.ready("qwen").ready, services.serves("qwen").ready) == (True, None)
    replies["/v1/completions"] = HttpReply(status=500)
    assert services.serves("qwen").ready is False


def test_a_service_that_is_not_ready_is_spared_the_canary(tmp_path: Path) -> None:
    site = FakeSite(host=FakeHost(tmp_path))
    services = book(site, canary={"openai": BASE, "model": "auto"})
    assert services.serves("qwen").why == "connection refused"
    assert site.requests == [("GET", BASE + "/health")]


def test_without_a_canary_readiness_is_all_there_is(tmp_path: Path) -> None:
    site = FakeSite(host=FakeHost(tmp_path), http_results=lambda method, url: HttpReply(status=200))
    services = book(site)
    assert services.serves("qwen").ready is True
    assert services.canary("qwen") == CanaryAnswer(ok=None, why="no canary is configured")
    with pytest.raises(KeyError):
        services.canary("llama")
