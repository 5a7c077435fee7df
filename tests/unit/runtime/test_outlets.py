"""An outlet is one Apprise target, dressed for each mail without changing what was built at start."""

from __future__ import annotations

import logging

import pytest
from sinks import SmtpSink, WebhookSink

from bandog.runtime.letters import Mail
from bandog.runtime.outlets import AppriseOutlet, OutletError
from bandog.runtime.secrets import Secrets

MAIL = Mail(title="title", body="body", threads=("<1@x>", "<2@x>"), fields={"incident": 1, "services": ["a"]})


def test_headers_of_one_mail_are_not_left_on_the_next() -> None:
    with SmtpSink() as smtp:
        outlet = AppriseOutlet(smtp.url, Secrets())
        assert outlet.send(MAIL) is None
        assert outlet.send(Mail(title="other", body="b")) is None
        first, second = smtp.wait(2)
    assert first["References"] == "<1@x> <2@x>"
    assert first["In-Reply-To"] == "<1@x>"
    assert second["References"] is None


def test_mail_is_plain_text() -> None:
    with SmtpSink() as smtp:
        AppriseOutlet(smtp.url, Secrets()).send(MAIL)
        [mail] = smtp.wait(1)
    assert mail.get_content_type() == "text/plain"


def test_fields_that_the_operator_set_in_the_url_win() -> None:
    with WebhookSink() as hook:
        outlet = AppriseOutlet(f"{hook.url}?:incident=mine&:team=gpu", Secrets())
        assert outlet.send(MAIL) is None
        [got] = hook.wait(1)
    assert (got["incident"], got["team"], got["services"]) == ("mine", "gpu", ["a"])


def test_a_failed_delivery_says_why_without_the_url() -> None:
    url = "json://user:hunter2x@127.0.0.1:1/hook-5c9b7a3e11112222"
    error = AppriseOutlet(url, Secrets()).send(MAIL)
    assert error
    assert "hunter2x" not in error
    assert "5c9b7a3e" not in error


def test_an_address_that_cannot_be_used_is_an_error_without_the_url() -> None:
    with pytest.raises(OutletError) as raised:
        AppriseOutlet("slack://hunter2x/secretsecretsecret", Secrets())
    assert "hunter2x" not in str(raised.value)
    assert "secretsecret" not in str(raised.value)


def test_what_apprise_logs_reaches_no_handler_of_ours() -> None:
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        AppriseOutlet("json://127.0.0.1:1/", Secrets()).send(MAIL)
    finally:
        logging.getLogger().removeHandler(handler)
    assert seen == []
