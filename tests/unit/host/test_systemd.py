"""The client of PID 1, against a small systemd1 service on a real dbus-daemon and on a private socket."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from fake_systemd1 import MANAGER, PATH, FakeManager, hang_up
from hypothesis import given
from hypothesis import strategies as st

from bandog.host.systemd import SystemdBus, unit_name, unit_path
from bandog.host.systemd_types import JobOutcome, SystemdError

UNIT = "vllm-qwen@0.service"
SOON = timedelta(seconds=5)
NO_BUS = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="dbus-daemon is not installed")

Body = Callable[[FakeManager, SystemdBus], Awaitable[None]]


def running_unit() -> dict[str, dict[str, Variant]]:
    return {
        "org.freedesktop.systemd1.Unit": {
            "Id": Variant("s", UNIT),
            "LoadState": Variant("s", "loaded"),
            "ActiveState": Variant("s", "active"),
            "SubState": Variant("s", "running"),
            "InvocationID": Variant("ay", bytes.fromhex("ab" * 16)),
            "ActiveEnterTimestampMonotonic": Variant("t", 5_000_000),
            "InactiveEnterTimestampMonotonic": Variant("t", 4_000_000),
            "StateChangeTimestampMonotonic": Variant("t", 5_000_001),
            "FragmentPath": Variant("s", "/etc/systemd/system/vllm-qwen@.service"),
            "DropInPaths": Variant("as", ["/etc/systemd/system/vllm-qwen@.service.d/50-bandog.conf"]),
            "UnitFileState": Variant("s", "enabled"),
            "NeedDaemonReload": Variant("b", True),
            "Job": Variant("(uo)", [7, "/org/freedesktop/systemd1/job/7"]),
        },
        "org.freedesktop.systemd1.Service": {
            "MainPID": Variant("u", 4242),
            "Result": Variant("s", "oom-kill"),
            "Type": Variant("s", "notify"),
            "NRestarts": Variant("u", 3),
            "Restart": Variant("s", "on-failure"),
            "KillMode": Variant("s", "process"),
            "ControlGroup": Variant("s", "/system.slice/system-vllm.slice/vllm-qwen@0.service"),
            "TimeoutStopUSec": Variant("t", 30_000_000),
            "EnvironmentFiles": Variant("a(sb)", [["/etc/default/vllm", False], ["/run/bandog/env/a.env", True]]),
            "TimeoutStartUSec": Variant("t", 2**64 - 1),
        },
    }


def run(folder: Path, body: Body, *, over: str = "bus", call_deadline: timedelta = SOON) -> None:
    """Run `body` with a fake systemd1 reachable `over` the bus, its private socket, or both."""

    async def main() -> None:
        manager = FakeManager(folder)
        manager.units[UNIT] = running_unit()
        if over in ("bus", "both"):
            await manager.join_bus()
        if over in ("private", "both"):
            manager.listen()
        systemd = SystemdBus(bus=manager.daemon.address, private=manager.private, call_deadline=call_deadline)
        try:
            await body(manager, systemd)
        finally:
            systemd.close()
            await manager.close()

    asyncio.run(main())


over_each = pytest.mark.parametrize("over", [pytest.param("bus", marks=NO_BUS), "private"])


@over_each
def test_a_unit_is_read_whole(tmp_path: Path, over: str) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        unit = await systemd.unit(UNIT)
        assert systemd.connected == over
        assert unit.name == UNIT
        assert (unit.load_state, unit.active_state, unit.sub_state) == ("loaded", "active", "running")
        assert (unit.result, unit.type_, unit.restart, unit.kill_mode) == (
            "oom-kill",
            "notify",
            "on-failure",
            "process",
        )
        assert (unit.main_pid, unit.n_restarts, unit.job) == (4242, 3, 7)
        assert unit.invocation_id == "ab" * 16
        assert unit.control_group.endswith("/vllm-qwen@0.service")
        assert (unit.active_enter, unit.inactive_enter) == (timedelta(seconds=5), timedelta(seconds=4))
        assert unit.drop_in_paths == ("/etc/systemd/system/vllm-qwen@.service.d/50-bandog.conf",)
        assert unit.environment_files == ("/etc/default/vllm", "/run/bandog/env/a.env")
        assert unit.need_daemon_reload
        assert unit.timeout_stop == timedelta(seconds=30)
        assert unit.timeout_start > timedelta(days=36500), "infinity"

    run(tmp_path, body, over=over)


def test_a_unit_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        unit = await systemd.unit("nothing.service")
        assert (unit.name, unit.load_state, unit.main_pid) == ("nothing.service", "not-found", None)

    run(tmp_path, body, over="private")


def test_main_pid_0_is_none(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.units[UNIT]["org.freedesktop.systemd1.Service"]["MainPID"] = Variant("u", 0)
        assert (await systemd.unit(UNIT)).main_pid is None

    run(tmp_path, body, over="private")


@over_each
@pytest.mark.parametrize("signal_first", [False, True])
def test_a_restart_is_one_job_waited_for_to_its_end(tmp_path: Path, over: str, signal_first: bool) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.signal_first = signal_first
        assert await systemd.restart(UNIT, deadline=SOON) == JobOutcome(result="done", job=101)
        asked = [call for call in manager.calls if call[0].endswith("Unit")]
        assert asked == [("RestartUnit", [UNIT, "replace"])]

    run(tmp_path, body, over=over)


@pytest.mark.parametrize("result", ["failed", "canceled", "dependency", "timeout", "collected"])
def test_how_a_job_ended_is_told_in_systemds_word(tmp_path: Path, result: str) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.auto = result
        outcome = await systemd.stop(UNIT, deadline=SOON)
        assert (outcome.result, outcome.job, outcome.done) == (result, 101, False)

    run(tmp_path, body, over="private")


def test_a_job_past_its_deadline_is_a_timeout_with_its_number(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.auto = None
        outcome = await systemd.start(UNIT, deadline=timedelta(milliseconds=50))
        assert (outcome.result, outcome.job) == ("timeout", 101)
        assert systemd.connected == "private", "the connection is not to blame"

    run(tmp_path, body, over="private")


@over_each
def test_a_refusal_says_why(tmp_path: Path, over: str) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        outcome = await systemd.restart("nothing.service", deadline=SOON)
        assert outcome == JobOutcome(result="refused", why="Unit nothing.service not found.")
        with pytest.raises(SystemdError) as caught:
            await systemd.reset_failed("nothing.service")
        assert caught.value.kind == "refused"
        await systemd.reset_failed(UNIT)

    run(tmp_path, body, over=over)


def test_a_job_asked_for_without_an_answer_is_never_an_error_that_looks_like_nothing_happened(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.silent_once.add("RestartUnit")
        outcome = await systemd.restart(UNIT, deadline=SOON)
        assert (outcome.result, outcome.job) == ("timeout", None)
        assert (await systemd.restart(UNIT, deadline=SOON)).done, "on a fresh connection"

    run(tmp_path, body, over="private", call_deadline=timedelta(milliseconds=100))


def test_a_call_without_an_answer_is_a_timeout_and_the_next_one_connects_anew(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.silent.add("GetUnitByPID")
        with pytest.raises(SystemdError) as caught:
            await systemd.unit_of_pid(1)
        assert caught.value.kind == "timeout"
        assert systemd.connected is None
        assert (await systemd.unit(UNIT)).main_pid == 4242

    run(tmp_path, body, over="private", call_deadline=timedelta(milliseconds=100))


@NO_BUS
def test_a_bus_that_dies_in_the_middle_of_a_job_does_not_lose_its_end(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.auto = None
        restart = asyncio.ensure_future(systemd.restart(UNIT, deadline=SOON))
        while not manager.jobs:  # noqa: ASYNC110  the fake has no event for it
            await asyncio.sleep(0.001)
        assert systemd.connected == "bus"
        await manager.leave_bus()
        while "GetJob" not in [member for member, _ in manager.calls]:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.001)
        manager.end_job(101, "done")
        assert await restart == JobOutcome(result="done", job=101)
        assert systemd.connected == "private"

    run(tmp_path, body, over="both")


def test_a_job_that_ended_unheard_has_no_known_result(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.auto = None
        restart = asyncio.ensure_future(systemd.restart(UNIT, deadline=SOON))
        while not manager.jobs:  # noqa: ASYNC110  the fake has no event for it
            await asyncio.sleep(0.001)
        manager.jobs.clear()
        await manager.drop_links()
        outcome = await restart
        assert (outcome.result, outcome.job) == ("disconnected", 101)

    run(tmp_path, body, over="private")


@NO_BUS
def test_after_a_restart_of_the_bus_a_fresh_connection_is_made(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        assert (await systemd.unit(UNIT)).main_pid == 4242
        await manager.leave_bus()
        with pytest.raises(SystemdError) as caught:
            await systemd.unit(UNIT)
        assert caught.value.kind == "disconnected"
        await manager.join_bus()
        assert (await systemd.restart(UNIT, deadline=SOON)).done

    run(tmp_path, body, over="bus")


def test_without_any_systemd_the_error_names_both_ways(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        with pytest.raises(SystemdError, match=r"/bus: .*; .*/private: ") as caught:
            await systemd.restart(UNIT, deadline=SOON)
        assert caught.value.kind == "disconnected"

    run(tmp_path, body, over="nothing")


@NO_BUS
def test_a_signal_that_somebody_else_sends_ends_no_job(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.auto = None
        restart = asyncio.ensure_future(systemd.restart(UNIT, deadline=timedelta(milliseconds=300)))
        while not manager.jobs:  # noqa: ASYNC110  the fake has no event for it
            await asyncio.sleep(0.001)
        liar = await MessageBus(manager.daemon.address).connect()
        assert systemd._link is not None
        for destination in (None, systemd._link._bus.unique_name):
            await liar.send(
                Message(
                    message_type=MessageType.SIGNAL,
                    destination=destination,
                    path=PATH,
                    interface=MANAGER,
                    member="JobRemoved",
                    signature="uoss",
                    body=[101, f"{PATH}/job/101", UNIT, "done"],
                )
            )
        assert (await restart).result == "timeout"
        await hang_up(liar)

    run(tmp_path, body, over="bus")


@NO_BUS
def test_being_subscribed_already_is_fine(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.subscribe_error = "AlreadySubscribed"
        await systemd.connect()
        assert systemd.connected == "bus"

    run(tmp_path, body, over="bus")


def test_the_first_call_on_the_private_socket_may_stay_unanswered(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.silent_once.add("Ping")
        await systemd.connect()
        assert [member for member, _ in manager.calls] == ["Ping", "Ping"]

    run(tmp_path, body, over="private")


@over_each
def test_the_unit_of_a_pid(tmp_path: Path, over: str) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        manager.pids[4242] = unit_path(UNIT)
        assert await systemd.unit_of_pid(4242) == UNIT
        assert await systemd.unit_of_pid(4243) is None

    run(tmp_path, body, over=over)


def test_many_calls_at_once_share_one_connection(tmp_path: Path) -> None:
    async def body(manager: FakeManager, systemd: SystemdBus) -> None:
        units = await asyncio.gather(*(systemd.unit(UNIT) for _ in range(20)))
        assert all(unit.main_pid == 4242 for unit in units)
        assert [member for member, _ in manager.calls].count("Ping") == 1

    run(tmp_path, body, over="private")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("dbus.service", "dbus_2eservice"),
        ("getty@tty1.service", "getty_40tty1_2eservice"),
        ("1st.service", "_31st_2eservice"),
        (r"a\x2db.service", r"a_5cx2db_2eservice"),
        ("", "_"),
    ],
)
def test_unit_names_are_escaped_as_systemd_does(name: str, label: str) -> None:
    assert unit_path(name) == f"/org/freedesktop/systemd1/unit/{label}"


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_unit_name_comes_back_from_its_path(name: str) -> None:
    assert unit_name(unit_path(name)) == name
