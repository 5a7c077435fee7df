"""Readiness: refused is not ready, silence is unknown, and every way of asking comes to an end."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bandog.host.site import ChildOutcome, HttpReply
from bandog.host.tcp import TcpProbe
from bandog.services.readiness import ServiceBook, by_command, by_http, by_tcp
from bandog.services.registry import Ready, Registry, Service
from bandog.testing import FakeHost, FakeSite

QWEN = Service(name="qwen", unit="vllm-qwen.service", ready=Ready(http="http://127.0.0.1:1/health"))


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    site = FakeSite(host=FakeHost(tmp_path))
    site.systemd.add("vllm-qwen.service")
    return site


def book(site: FakeSite, ready: Ready) -> ServiceBook:
    return ServiceBook(Registry((replace(QWEN, ready=ready),)), site)


@pytest.mark.parametrize(
    ("reply", "ready"),
    [
        (HttpReply(status=200), True),
        (HttpReply(status=204), True),
        (HttpReply(status=429), True),
        (HttpReply(status=500), False),
        (HttpReply(status=503), False),
        (HttpReply(status=404), False),
        (HttpReply(status=302), None),
        (HttpReply(status=401), None),
        (HttpReply(error="refused"), False),
        (HttpReply(error="timeout"), None),
        (HttpReply(error="Name or service not known"), None),
    ],
)
def test_an_http_answer_means(reply: HttpReply, ready: bool | None) -> None:
    assert by_http(reply).ready is ready


@pytest.mark.parametrize(
    ("outcome", "ready"),
    [
        (ChildOutcome(code=0), True),
        (ChildOutcome(code=1), False),
        (ChildOutcome(code=-9), None),
        (ChildOutcome(code=127), None),
        (ChildOutcome(code=None, timed_out=True), None),
        (ChildOutcome(code=None, timed_out=True, stuck=True), None),
    ],
)
def test_a_command_means(outcome: ChildOutcome, ready: bool | None) -> None:
    assert by_command(outcome, Ready(command=("check",))).ready is ready


def test_a_port_that_listens_is_ready_and_one_that_does_not_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        assert by_tcp(place, TcpProbe()).ready is True
    assert by_tcp(place, TcpProbe()).ready is False


def test_a_place_without_a_port_is_unknown() -> None:
    assert by_tcp("localhost", TcpProbe()).ready is None


@pytest.mark.parametrize(
    ("state", "ready"), [("active", True), ("activating", False), ("failed", False), ("inactive", False)]
)
def test_a_unit_is_ready_when_active(site: FakeSite, state: str, ready: bool) -> None:
    site.systemd.change("vllm-qwen.service", active_state=state)
    assert book(site, Ready(unit=True)).ready("qwen").ready is ready


def test_a_silent_systemd_is_unknown(site: FakeSite) -> None:
    site.systemd.disconnect("timeout")
    answer = book(site, Ready(unit=True)).ready("qwen")
    assert answer.ready is None
    assert "timeout" in answer.why


def test_the_book_asks_by_the_way_that_the_service_names(site: FakeSite) -> None:
    site.http_results = lambda method, url: HttpReply(status=200)
    assert book(site, Ready(http="http://127.0.0.1:1/health")).ready("qwen").ready is True
    assert site.requests == [("GET", "http://127.0.0.1:1/health")]
    assert book(site, Ready(command=("/usr/bin/check", "now"))).ready("qwen").ready is True
    assert site.children == [("/usr/bin/check", "now")]


def test_a_reload_replaces_the_services(site: FakeSite) -> None:
    services = book(site, Ready(unit=True))
    services.replace(Registry((replace(QWEN, name="llama"),)))
    assert services.names() == ("llama",)
    with pytest.raises(KeyError):
        services.ready("qwen")
