"""The dead-man ping goes out while the loop beats, and stops when it does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bandog.host.http import HttpClient
from bandog.runtime.heartbeat import Heartbeat
from bandog.runtime.secrets import Secrets
from bandog.testing import FakeClock


class Server(ThreadingHTTPServer):
    status = 200
    asked = 0
    came = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/ping/5c9b7a3e-1111-2222-3333-444455556666"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(self.server.status)
        self.end_headers()
        self.server.came.set()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def heart(server: Server, clock: FakeClock, every: timedelta = timedelta(minutes=5)) -> Heartbeat:
    return Heartbeat(server.url, every=every, http=HttpClient(), clock=clock, secrets=Secrets())


def test_a_beating_loop_is_reported(server: Server) -> None:
    heartbeat = heart(server, FakeClock())
    heartbeat.beat()
    assert heartbeat.ping()
    assert (server.asked, heartbeat.sent) == (1, 1)


def test_silence_when_the_loop_never_beat_or_has_stopped(server: Server) -> None:
    clock = FakeClock()
    heartbeat = heart(server, clock)
    assert not heartbeat.ping()
    heartbeat.beat()
    clock.advance(timedelta(seconds=61))
    assert not heartbeat.ping()
    assert server.asked == 0


def test_a_refused_ping_is_an_error_without_the_secret_url(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.status = 500
    heartbeat = heart(server, FakeClock())
    heartbeat.beat()
    assert not heartbeat.ping()
    assert heartbeat.error == "HTTP 500"
    assert "5c9b7a3e" not in caplog.text


def test_it_pings_by_itself(server: Server) -> None:
    heartbeat = heart(server, FakeClock(), every=timedelta(milliseconds=10))
    heartbeat.beat()
    heartbeat.start()
    assert server.came.wait(5)
    heartbeat.stop()
