"""What we tell systemd, over a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bandog.runtime.watchdog import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening notify socket and its address as NOTIFY_SOCKET spells it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if request.param == "path":
            address = bound = str(tmp_path / "notify")
        else:
            name = f"bandog-test-{os.getpid()}-{tmp_path.name}"
            address, bound = f"@{name}", f"\0{name}"
        listener.bind(bound)
        listener.setblocking(False)
        yield listener, address


def test_speaks_sd_notify(systemd: tuple[socket.socket, str]) -> None:
    listener, address = systemd
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
    assert notifier.watchdog == timedelta(seconds=30)
    notifier.ready("watching 8 GPUs\nin observe")
    notifier.ping()
    notifier.status("all\nquiet")
    notifier.reloading()
    notifier.stopping()
    said = [listener.recv(4096).decode() for _ in range(5)]
    assert said[:3] == ["READY=1\nSTATUS=watching 8 GPUs in observe", "WATCHDOG=1", "STATUS=all quiet"]
    assert said[3].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert said[4] == "STOPPING=1"
    notifier.close()
    notifier.ping()


def test_children_never_see_the_socket(systemd: tuple[socket.socket, str]) -> None:
    environ = {"NOTIFY_SOCKET": systemd[1], "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1", "PATH": "/bin"}
    Notifier(environ).close()
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "changes",
    [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "9" * 40}],
)
def test_no_ping_where_no_watchdog_waits_for_us(systemd: tuple[socket.socket, str], changes: dict[str, str]) -> None:
    listener, address = systemd
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"} | changes)
    assert notifier.watchdog is None
    notifier.ping()
    with pytest.raises(BlockingIOError):
        listener.recv(100)
    notifier.close()


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "/nowhere/notify", "@", "/" + "x" * 300])
def test_without_a_listener_nothing_happens(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address} if address else {})
    assert not notifier.under_systemd or address == "@"
    notifier.ready()
    notifier.ping()
    notifier.close()


def test_a_systemd_that_does_not_read_never_blocks_us(systemd: tuple[socket.socket, str]) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd[1], "WATCHDOG_USEC": "1000000"})
    for _ in range(5000):
        notifier.ping()
    assert notifier.dropped > 0
    notifier.close()
