"""The HTTP client always comes back: with an answer, with `refused`, or at the deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandog.host.clock import SystemClock
from bandog.host.http import HttpClient, is_local
from bandog.host.paths import Paths

SOON = timedelta(milliseconds=300)


@contextmanager
def server(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one connection after the other by `answer`, which may wait for the event that ends the test."""
    over, asked = threading.Event(), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        asked.append(connection.recv(65536))
                        answer(connection, over)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def says(text: bytes) -> Callable[[socket.socket, threading.Event], None]:
    return lambda connection, over: connection.sendall(text)


def drips(first: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Send a byte every 50 ms for ever: no single read ever times out."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(first)
        while not over.wait(0.05):
            connection.sendall(b"x")

    return answer


def test_an_answer_has_status_and_body() -> None:
    with server(says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as (url, asked):
        reply = HttpClient().request("GET", f"{url}/health?deep=1", deadline=timedelta(seconds=5))
    assert (reply.status, reply.body, reply.error) == (200, b"ok", None)
    assert asked[0].startswith(b"GET /health?deep=1 HTTP/1.1\r\n")


def test_a_body_and_headers_are_sent() -> None:
    with server(says(b"HTTP/1.1 204 No Content\r\n\r\n")) as (url, asked):
        reply = HttpClient().request("POST", url, body=b"{}", headers={"X-Key": "1"}, deadline=timedelta(seconds=5))
    assert reply.status == 204
    assert b"X-Key: 1" in asked[0]


def test_a_redirect_is_not_followed() -> None:
    with server(says(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")) as (url, asked):
        assert HttpClient().request("GET", url, deadline=timedelta(seconds=5)).status == 302
    assert len(asked) == 1


def test_no_more_than_the_limit_is_read() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000
    with server(says(endless)) as (url, _):
        reply = HttpClient().request("GET", url, deadline=timedelta(seconds=5), limit=1000)
    assert len(reply.body) == 1000


def test_nobody_listening_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert HttpClient().request("GET", f"http://127.0.0.1:{port}/", deadline=SOON).error == "refused"


@pytest.mark.parametrize(
    "first",
    [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"],
    ids=["in the status line", "in a header", "in the body"],
)
def test_a_server_that_drips_is_given_up_at_the_deadline(first: bytes) -> None:
    clock, client = SystemClock(Paths()), HttpClient()
    with server(drips(first)) as (url, _):
        began = clock.now()
        reply = client.request("GET", url, deadline=SOON)
        assert clock.now().since(began) < timedelta(seconds=2)
    assert reply.error == "timeout"


def test_the_thread_of_a_given_up_call_ends() -> None:
    client = HttpClient()
    with server(drips(b"HTTP/1.1 200 OK\r\n\r\n")) as (url, _):
        client.request("GET", url, deadline=SOON)
        for thread in threading.enumerate():
            if thread.name == "bandog-http":
                thread.join(5)
        assert client.overrun == 0


def test_an_answer_that_is_no_http_is_an_error_in_words() -> None:
    with server(says(b"\x00\xff\xfe nonsense\r\n\r\n")) as (url, _):
        reply = HttpClient().request("GET", url, deadline=timedelta(seconds=5))
    assert reply.status is None
    assert reply.error


@given(st.text(max_size=60))
@settings(max_examples=25, deadline=None)
def test_any_text_as_a_url_never_raises(text: str) -> None:
    reply = HttpClient().request("GET", f"ftp:{text}", deadline=SOON)
    assert reply.error
    assert reply.status is None


def test_this_host_is_never_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with server(says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (url, _):
        assert HttpClient().request("GET", url, deadline=timedelta(seconds=5)).status == 200


def test_others_are_asked_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (url, asked):
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.delenv("no_proxy", raising=False)
        client = HttpClient()
        assert client.request("GET", "http://ping.example/x", deadline=timedelta(seconds=5)).status == 200
    assert asked[0].startswith(b"GET http://ping.example/x HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("host", "local"), [("localhost", True), ("127.3.4.5", True), ("::1", True), ("example.org", False)]
)
def test_local_names(host: str, local: bool) -> None:
    assert is_local(host) is local
