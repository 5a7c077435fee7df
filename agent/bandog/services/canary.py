"""The canary: one short completion, asked of an OpenAI-compatible server as a client would ask it.

A health page says that a process lives; only tokens say that the model answers. Nothing that the
server says is quoted but the name of its model: some servers repeat the key that they were sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from ..domain.model import Instant
from ..host.site import CanaryAnswer, Clock, HttpReply

TOKENS = 8
"""The first token comes from prefill; a dead decoder shows only in those after it."""
DEADLINE = timedelta(seconds=15)
"""Of the whole canary; readiness and canary together must end within one look of a proof (30 s)."""
_PROMPT = "1 2 3 4 5 6 7 8"
_LIMIT = 1 << 20
_NAME = 100
_MOST_TOKENS = 1 << 20
_ELSEWHERE = frozenset({404, 405, 501})
"""No such endpoint: chat-only servers have no /v1/completions."""

Json = dict[str, Any]


class Means(Protocol):
    """What a canary needs of the host; `host.site.Site` has it."""

    @property
    def clock(self) -> Clock:
        """The clocks."""

    def http(
        self,
        method: str,
        url: str,
        *,
        deadline: timedelta,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = 1 << 20,
    ) -> HttpReply:
        """Ask an HTTP server under a deadline; never raises."""


class NoKey(Exception):
    """The API key cannot be had; the text says why and does not hold it."""


class _Verdict(Exception):
    """The canary has ended without tokens: `ok` False for a wrong answer, None where nothing was learnt."""

    def __init__(self, ok: bool | None, why: str) -> None:
        super().__init__(why)
        self.ok = ok
        self.why = why


def ask(
    canary: Mapping[str, Any],
    means: Means,
    key: Callable[[str], str],
    *,
    deadline: timedelta = DEADLINE,
) -> CanaryAnswer:
    """Ask once, by a service's `canary:`; for worker threads, never raises.

    `key` returns the API key of a credential's name, or raises NoKey. `ok` is True for tokens, False
    for an answer that no healthy server gives, None where the server did not answer or would not let us in.
    """
    begun = means.clock.now()
    talk = _Talk(str(canary.get("openai", "")), canary.get("credential"), means, begun, deadline)
    tokens = None
    try:
        talk.unlock(key)
        talk.model = talk.choose(str(canary.get("model", "auto")))
        tokens = talk.complete()
        ok: bool | None = True
        why = f"{talk.told(talk.model)} answered"
    except _Verdict as verdict:
        ok, why = verdict.ok, verdict.why
    return CanaryAnswer(
        ok=ok,
        why=why,
        model=talk.told(talk.model),
        took=max(timedelta(), means.clock.now().since(begun)),
        tokens=tokens,
    )


@dataclass
class _Talk:
    """One canary's exchange with its server."""

    base: str
    credential: str | None
    means: Means
    begun: Instant
    deadline: timedelta
    secret: str = ""
    model: str = ""

    def unlock(self, key: Callable[[str], str]) -> None:
        """Fetch the key, and refuse one that would make the HTTP library quote it in an error."""
        self.base = self.base.rstrip("/").removesuffix("/v1")
        if self.credential is None:
            return
        try:
            self.secret = key(self.credential)
        except NoKey as error:
            raise _Verdict(None, f'no API key from credential "{self.credential}": {error}') from None
        if not self.secret or not all("!" <= letter <= "~" for letter in self.secret):
            raise _Verdict(
                None, f'credential "{self.credential}" is no API key: printable ASCII without blanks'
            ) from None

    def told(self, word: str) -> str:
        """Return a foreign word fit for a log line: without the key, printable, short."""
        if self.secret:
            word = word.replace(self.secret, "***")
        clean = "".join(letter if letter.isprintable() else "?" for letter in word[:_NAME])
        return clean if len(word) <= _NAME else f"{clean}…"

    def choose(self, wanted: str) -> str:
        """Return the model to ask: the one that is wanted if it is listed, or the first for `auto`."""
        reply = self._send("GET", "/v1/models")
        if reply.status in _ELSEWHERE and wanted != "auto":
            return wanted
        listed = _models(_json(self._good(reply, "/v1/models"), "/v1/models"))
        if not listed:
            raise _Verdict(False, "/v1/models lists no model")
        if wanted == "auto":
            return listed[0]
        if wanted not in listed:
            raise _Verdict(False, f'/v1/models lists "{self.told(listed[0])}", not "{self.told(wanted)}"')
        return wanted

    def complete(self) -> int | None:
        """Return how many tokens came, None where the server does not count them."""
        ask: Json = {"model": self.model, "max_tokens": TOKENS, "temperature": 0}
        place = "/v1/completions"
        reply = self._send("POST", place, {**ask, "prompt": _PROMPT})
        if reply.status in _ELSEWHERE:
            place = "/v1/chat/completions"
            reply = self._send("POST", place, {**ask, "messages": [{"role": "user", "content": _PROMPT}]})
        return _tokens(_json(self._good(reply, place), place), place)

    def _send(self, method: str, place: str, body: Json | None = None) -> HttpReply:
        left = self.deadline - self.means.clock.now().since(self.begun)
        if left <= timedelta():
            raise _Verdict(None, f"no answer within {self.deadline.total_seconds():g} s")
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.secret:
            headers["Authorization"] = f"Bearer {self.secret}"
        sent = None if body is None else json.dumps(body).encode()
        reply = self.means.http(method, self.base + place, deadline=left, body=sent, headers=headers, limit=_LIMIT)
        if reply.error == "refused":
            raise _Verdict(None, "connection refused")
        if reply.error == "timeout":
            raise _Verdict(None, f"{place}: no answer within {self.deadline.total_seconds():g} s")
        if reply.status is None:
            raise _Verdict(None, f"{place}: {self.told(reply.error or 'no answer')}")
        return reply

    def _good(self, reply: HttpReply, place: str) -> bytes:
        """Return the body of a 200; a verdict for anything else."""
        status = reply.status or 0
        if status in (401, 403):
            hint = "canary: needs `credential:` with its API key"
            if self.credential is not None:
                hint = f'credential "{self.credential}" is not accepted'
            raise _Verdict(None, f"{place}: HTTP {status}: {hint}")
        if status in (408, 429):
            raise _Verdict(None, f"{place}: HTTP {status}: it sheds load")
        if 300 <= status < 400:
            raise _Verdict(False, f"{place}: HTTP {status}: redirects are not followed")
        if status != 200:
            raise _Verdict(False, f"{place}: HTTP {status}")
        if len(reply.body) >= _LIMIT:
            raise _Verdict(False, f"{place}: an answer of {_LIMIT >> 20} MiB or more")
        return reply.body


def _json(body: bytes, place: str) -> Json:
    """Return the JSON object in `body`. Deep nesting ends the parser with RecursionError."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise _Verdict(False, f"{place}: the answer is no JSON") from None
    if not isinstance(value, dict):
        raise _Verdict(False, f"{place}: the answer is no JSON object")
    return value


def _models(answer: Json) -> list[str]:
    """Return the names that /v1/models lists, in its order."""
    listed = answer.get("data")
    found = [one.get("id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [one for one in found if isinstance(one, str) and one]


def _tokens(answer: Json, place: str) -> int | None:
    """Return how many tokens a completion has; a verdict where it has neither text nor tokens."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise _Verdict(False, f"{place}: the answer has no choices")
    if not choices:
        raise _Verdict(False, f"{place}: the list of choices is empty")
    usage = answer.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    # True is an int to Python, and a number without bounds is no count.
    tokens = counted if type(counted) is int and 0 <= counted <= _MOST_TOKENS else None
    if any(_has_text(one) for one in choices) or (tokens or 0) >= 1:
        return tokens
    raise _Verdict(False, f"{place}: a choice without text or tokens")


def _has_text(choice: object) -> bool:
    """True for a completion's text, or a chat message's content or reasoning."""
    if not isinstance(choice, dict):
        return False
    message = choice.get("message")
    parts = [choice.get("text")]
    if isinstance(message, dict):
        parts += [message.get("content"), message.get("reasoning_content"), message.get("reasoning")]
    return any(isinstance(part, str) and part for part in parts)
