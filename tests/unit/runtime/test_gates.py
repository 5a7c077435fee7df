"""Gates: each reason to wait is found, told in words, and what cannot be told is a reason too."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bandog import Incident, Request
from bandog.domain.windows import Window
from bandog.runtime.gates import (
    MAX_REASON,
    BootGate,
    Gate,
    HoldGate,
    Holds,
    KubeletGate,
    PackageGate,
    VetoGate,
    WindowGate,
    expired,
    lock_holder,
)
from bandog.runtime.workers import Workers
from bandog.store.rows import SaveHold
from bandog.testing import FakeClock, FakeHost
from samples import NOW, incident, request

INCIDENT = incident()


def ask(gate: Gate, incident: Incident | None = INCIDENT, **fields: Any) -> str | None:
    """Ask the gate about a request."""

    async def asked() -> str | None:
        return await asyncio.wait_for(gate.check(request(**fields), incident), 20)

    return asyncio.run(asked())


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A host below the test's directory."""
    return FakeHost(tmp_path)


# --- hold ------------------------------------------------------------------------------------------


def hold(target: str = "*", hours: float | None = 2) -> SaveHold:
    """A pause from now on."""
    until = None if hours is None else NOW.plus(timedelta(hours=hours))
    return SaveHold(target=target, by="ann", reason="upgrade", made=NOW, until=until)


def holding(host: FakeHost, *holds: SaveHold, **options: Any) -> HoldGate:
    """The gate with these pauses."""
    return HoldGate(Holds(holds), paths=host.paths, clock=host.clock, workers=Workers(), **options)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("*", "everything is on hold until 2026-11-30 14:00 UTC by ann: upgrade"),
        ("qwen", "qwen is on hold until 2026-11-30 14:00 UTC by ann: upgrade"),
        ("xid-contained-ecc", "xid-contained-ecc is on hold until 2026-11-30 14:00 UTC by ann: upgrade"),
        ("llama", None),
    ],
)
def test_a_pause_holds_its_target_only(host: FakeHost, target: str, words: str | None) -> None:
    assert ask(holding(host, hold(target))) == words


def test_a_pause_ends_by_itself(host: FakeHost) -> None:
    gate = holding(host, hold())
    host.clock.advance(timedelta(hours=2, seconds=-1))
    assert ask(gate) is not None
    host.clock.advance(timedelta(seconds=1))
    assert ask(gate) is None


def test_a_pause_without_end_holds_until_it_is_dropped(host: FakeHost) -> None:
    holds = Holds([hold(hours=None)])
    gate = HoldGate(holds, paths=host.paths, clock=host.clock, workers=Workers())
    host.clock.advance(timedelta(days=400))
    assert ask(gate) == "everything is on hold by ann: upgrade"
    assert holds.drop("*") is not None
    assert holds.drop("*") is None
    assert ask(gate) is None


def test_a_wrong_clock_after_a_boot_does_not_end_a_pause(host: FakeHost) -> None:
    host.clock.reboot(synced=False)
    host.clock.set_utc(datetime(2031, 1, 1, tzinfo=UTC))
    assert not expired(hold(), host.clock.now())
    host.clock.advance(timedelta(hours=2))
    assert expired(hold(), host.clock.now())


def test_a_new_pause_replaces_the_old_one_and_expired_ones_are_listed(host: FakeHost) -> None:
    holds = Holds([hold("qwen", hours=1)])
    holds.add(hold("qwen", hours=3))
    holds.add(hold("llama", hours=1))
    later = NOW.plus(timedelta(hours=2))
    assert [one.target for one in holds.active(later)] == ["qwen"]
    assert [one.target for one in holds.expired(later)] == ["llama"]


def test_the_hold_file_holds_with_its_text_as_the_reason(host: FakeHost) -> None:
    file = host.paths.etc / "hold"
    file.write_text("moving\nracks \n")
    assert ask(holding(host)) == f"{file} says hold: moving racks"
    file.write_text("")
    assert ask(holding(host)) == f"{file} says hold"
    file.write_bytes(b"\xff\x00" * 100_000)
    assert str(ask(holding(host))).startswith(f"{file} says hold")
    file.unlink()
    assert ask(holding(host)) is None


def test_a_hold_file_that_cannot_be_read_holds(host: FakeHost) -> None:
    (host.paths.etc / "hold").mkdir()
    assert str(ask(holding(host))).startswith("cannot tell, so wait: ")


def test_a_hold_file_on_a_disk_that_hangs_holds(host: FakeHost) -> None:
    os.mkfifo(host.paths.etc / "hold")
    gate = holding(host, deadline=timedelta(milliseconds=50))
    assert ask(gate) == "cannot tell, so wait: gate.hold gave no answer within 0.05 s"
    with (host.paths.etc / "hold").open("wb"):
        pass


def test_a_crowd_of_requests_shares_one_look(host: FakeHost) -> None:
    workers = Workers(max_threads=3)
    gates: list[Gate] = [
        HoldGate(Holds(), paths=host.paths, clock=host.clock, workers=workers),
        PackageGate(paths=host.paths, workers=workers),
        KubeletGate(lambda: False, paths=host.paths, clock=host.clock, workers=workers),
    ]

    async def crowd() -> list[str | None]:
        return await asyncio.gather(*(gate.check(request(), INCIDENT) for gate in gates for _ in range(50)))

    assert set(asyncio.run(crowd())) == {None}
    assert workers.refused == 0


def test_a_crowd_asks_the_veto_in_turns(host: FakeHost) -> None:
    workers = Workers(max_threads=4)
    gate = VetoGate(lambda *, request, incident: None, workers)

    async def crowd() -> list[str | None]:
        return await asyncio.gather(*(gate.check(request(), INCIDENT) for _ in range(50)))

    assert set(asyncio.run(crowd())) == {None}
    assert workers.refused == 0


# --- packages ----------------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(file: Path) -> Iterator[int]:
    """Another process that holds the lock as dpkg does."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process.pid
        process.communicate()


def test_a_package_operation_is_seen_by_its_lock_and_over_when_it_is_released(host: FakeHost) -> None:
    file = host.write("/var/lib/dpkg/lock-frontend", "")
    gate = PackageGate(paths=host.paths, workers=Workers())
    assert ask(gate) is None
    with locked(file) as pid:
        assert ask(gate) == f"a package operation is under way ({file} is locked by process {pid})"
    assert ask(gate) is None


def test_the_look_takes_no_lock_and_makes_no_file(host: FakeHost) -> None:
    gate = PackageGate(paths=host.paths, workers=Workers())
    assert ask(gate) is None
    assert not host.paths.at("/var/lib/dpkg").exists()
    file = host.write("/var/lib/dpkg/lock", "")
    assert lock_holder(file) is None
    with file.open("w") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_file_that_is_a_link_is_a_reason_to_wait(host: FakeHost) -> None:
    file = host.write("/var/lib/dpkg/lock", "")
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")
    assert str(ask(PackageGate(paths=host.paths, workers=Workers()))).startswith("cannot tell, so wait: ")


# --- kubelet, boot -------------------------------------------------------------------------------------


@pytest.mark.parametrize("comm", ["kubelet", "k3s-agent", "kubelite"])
def test_a_kubelet_that_runs_here_holds_unless_the_operator_allows_it(host: FakeHost, comm: str) -> None:
    host.task(17, "bash")
    host.task(42, comm)
    allowed = False
    gate = KubeletGate(lambda: allowed, paths=host.paths, clock=host.clock, workers=Workers())
    expected = f"{comm} (process 42) looks after this host; kubernetes: true lets bandog act"
    assert ask(gate) == expected
    allowed = True
    assert ask(gate) is None


def test_without_a_kubelet_nothing_objects_and_it_is_looked_up_now_and_then(host: FakeHost) -> None:
    host.task(17, "kubelet-wrapper")
    gate = KubeletGate(lambda: False, paths=host.paths, clock=host.clock, workers=Workers())
    assert ask(gate) is None
    host.task(42, "kubelet")
    assert ask(gate) is None
    host.clock.advance(timedelta(seconds=30))
    assert ask(gate) is not None


def test_shortly_after_a_boot_only_reboot_and_reset_wait(host: FakeHost) -> None:
    host.clock.reboot()
    gate = BootGate(host.clock)
    assert ask(gate) is None
    assert ask(gate, action="reboot") == "the host booted less than 10m ago, too soon for a reboot"
    host.clock.advance(timedelta(minutes=10))
    assert ask(gate, action="reboot") is None


# --- windows ------------------------------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")
SATURDAY = Window(name="default", days=("sat",), begin=time(2), until=time(5), zone=BERLIN)


def window_gate(clock: FakeClock, *windows: Window) -> WindowGate:
    """The gate with these windows."""
    return WindowGate(lambda: {one.name: one for one in windows}, clock)


def test_a_request_for_the_window_waits_for_it_patiently_and_others_do_not() -> None:
    clock = FakeClock(utc=datetime(2026, 11, 30, 12, 0, tzinfo=UTC))
    gate = window_gate(clock, SATURDAY)
    assert gate.patient
    assert ask(gate) is None
    assert ask(gate, with_={"when": "now"}) is None
    assert ask(gate, with_={"when": "window"}) == "waits for the window default, Sat 2026-12-05 02:00 CET"
    clock.set_utc(datetime(2026, 12, 5, 1, 0, tzinfo=UTC))
    assert ask(gate, with_={"when": "window"}) is None


def test_a_window_by_name_and_one_that_is_not_configured() -> None:
    clock = FakeClock()
    night = Window(name="night", days=("mon",), begin=time(11), until=time(14), zone=ZoneInfo("UTC"))
    assert ask(window_gate(clock, night), with_={"when": "window", "window": "night"}) is None
    why = ask(window_gate(clock, night), with_={"when": "window"})
    assert why == "waits for a window, and no window 'default' is configured; do it by hand or set windows:"


def test_a_clock_that_cannot_be_right_opens_no_window() -> None:
    clock = FakeClock(utc=datetime(2000, 1, 1, 2, 0, tzinfo=UTC), synced=False)
    why = ask(window_gate(clock, SATURDAY), with_={"when": "window"})
    assert why == "the clock says 2000-01-01 and is not synchronised, so no window can be told"


# --- veto ----------------------------------------------------------------------------------------------


def test_a_plugins_reason_holds_and_no_reason_does_not() -> None:
    assert ask(VetoGate(lambda *, request, incident: f"not {request.service}", Workers())) == "not qwen"
    assert ask(VetoGate(lambda *, request, incident: None, Workers())) is None
    long = ask(VetoGate(lambda *, request, incident: "no " * 1_000_000, Workers()))
    assert long is not None and len(long) == MAX_REASON


def test_without_a_plugin_that_has_the_hook_nobody_is_asked() -> None:
    workers = Workers()
    plugins: list[str] = []
    gate = VetoGate(lambda *, request, incident: "not now", workers, anyone=lambda: bool(plugins))
    assert ask(gate) is None
    plugins.append("one")
    assert ask(gate) == "not now"


def test_a_veto_that_crashes_hangs_or_cannot_be_asked_refuses() -> None:
    go = threading.Event()

    def crash(*, request: Request, incident: Incident) -> str | None:
        raise ValueError("secret")

    def leave(*, request: Request, incident: Incident) -> str | None:
        raise SystemExit(1)

    def hang(*, request: Request, incident: Incident) -> str | None:
        go.wait(20)
        return None

    soon = timedelta(milliseconds=50)
    assert ask(VetoGate(crash, Workers())) == "a veto refuses: it raised ValueError"
    assert ask(VetoGate(leave, Workers())) == "a veto refuses: it raised WorkerCrash"
    assert ask(VetoGate(hang, Workers(), deadline=soon)) == "a veto refuses: gate.veto gave no answer within 0.05 s"
    go.set()
    assert ask(VetoGate(hang, Workers()), None) == "its incident is not known, so no plugin can be asked"
