"""What one delivery carries: a letter or a digest; late ones say so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from bandog.domain.codec import from_json, to_json
from bandog.runtime.letters import compose
from bandog.runtime.messages import Message
from bandog.testing import FakeClock

CLOCK = FakeClock()


def message(number: int, **fields: Any) -> Message:
    base = Message(
        id=f"m{number}",
        to=("oncall",),
        title=f"[gpu07] #{number} error",
        text=f"text {number}",
        made=CLOCK.now(),
        incident=number,
        thread=f"<{number}@gpu07>",
        footer="footer",
    )
    return replace(base, **fields)


def test_messages_of_one_incident_are_one_letter_with_one_footer() -> None:
    mail = compose([message(1), message(1, text="later", tone="success")], CLOCK.now(), "gpu07")
    assert mail.body == "text 1\n\nlater\n\nfooter"
    assert (mail.title, mail.threads, mail.tone) == ("[gpu07] #1 error", ("<1@gpu07>",), "success")


def test_messages_of_several_incidents_are_a_digest() -> None:
    mail = compose([message(1), message(2), message(1, text="more")], CLOCK.now(), "gpu07")
    assert mail.title == "[gpu07] 2 incidents at once: #1, #2"
    assert mail.body == "[gpu07] #1 error\n  text 1\n  more\n\n[gpu07] #2 error\n  text 2"
    assert mail.threads == ("<1@gpu07>", "<2@gpu07>")
    assert mail.fields["incidents"] == [1, 2]


def test_a_late_message_tells_its_age() -> None:
    now = CLOCK.now().plus(timedelta(hours=3, seconds=59))
    assert compose([message(1)], now, "gpu07").body.startswith("(written 3h ago;")


def test_a_message_survives_json() -> None:
    original = message(1, fields={"incident": 1, "services": ["qwen"]})
    assert from_json(Message, to_json(original)) == original
