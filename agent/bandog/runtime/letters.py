"""One delivery from the messages that wait for an address: a letter of one incident, or a digest of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..domain.model import EMPTY, Instant
from ..domain.policy import format_duration
from .messages import MAX_TITLE, Message
from .wording import plain

MAX_BODY = 8000
# A message that waited longer than this says so.
_LATE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What one delivery carries. `threads` are message ids for `References:`."""

    title: str
    body: str
    tone: str = "warning"
    threads: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


def compose(messages: Sequence[Message], now: Instant, host: str) -> Mail:
    """Return one delivery for messages of one incident, or a digest for those of several."""
    if len({(message.incident, message.title) for message in messages}) == 1:
        return _letter(messages, now)
    return _digest(messages, now, host)


def _letter(messages: Sequence[Message], now: Instant) -> Mail:
    last = messages[-1]
    paragraphs = [_aged(message, now) for message in messages]
    if last.footer:
        paragraphs.append(last.footer)
    return Mail(
        title=last.title,
        body="\n\n".join(paragraphs)[:MAX_BODY],
        tone=last.tone if last.tone == "success" else _worst(messages),
        threads=(last.thread,) if last.thread else (),
        fields=last.fields,
    )


def _digest(messages: Sequence[Message], now: Instant, host: str) -> Mail:
    by_title: dict[str, list[Message]] = {}
    for message in messages:
        by_title.setdefault(message.title, []).append(message)
    paragraphs = [
        "\n".join([title, *(f"  {line}" for one in group for line in _aged(one, now).splitlines())])
        for title, group in by_title.items()
    ]
    incidents = sorted({one.incident for one in messages if one.incident is not None})
    numbers = ", ".join(f"#{number}" for number in incidents[:12]) + (" …" if len(incidents) > 12 else "")
    body = "\n\n".join(paragraphs)
    if len(body) > MAX_BODY:
        body = body[:MAX_BODY] + "\n… and more: bandog incidents"
    return Mail(
        title=f"[{plain(host, 40)}] {len(incidents)} incidents at once: {numbers}"[:MAX_TITLE],
        body=body,
        tone=_worst(messages),
        threads=tuple(dict.fromkeys(one.thread for one in messages if one.thread))[:10],
        fields={"host": host, "what": "digest", "incidents": incidents},
    )


def _aged(message: Message, now: Instant) -> str:
    age = now.since(message.made)
    if age < _LATE:
        return message.text
    rounded = timedelta(seconds=int(age.total_seconds()) // 60 * 60)
    return f"(written {format_duration(rounded)} ago; it could not be delivered before)\n{message.text}"


def _worst(messages: Sequence[Message]) -> str:
    order = ("info", "success", "warning", "failure")
    return max((message.tone for message in messages), key=lambda tone: order.index(tone) if tone in order else 2)
