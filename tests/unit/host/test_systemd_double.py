"""The real client of PID 1 and its double answer to the same tests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from dbus_fast import Variant
from fake_systemd1 import FakeManager

from bandog import Systemd, SystemdError
from bandog.host.systemd import SystemdBus, unit_path
from bandog.testing import FakeClock, FakeSystemd

UNIT = "vllm.service"
SOON = timedelta(seconds=5)


class AnySystemd(ABC):
    """What holds for every systemd that has one unit, running as process 4242."""

    @abstractmethod
    def systemd(self, folder: Path) -> AbstractAsyncContextManager[Systemd]:
        """Return the systemd under test."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Callable[[Callable[[Systemd], Awaitable[None]]], None]:
        def run(body: Callable[[Systemd], Awaitable[None]]) -> None:
            async def main() -> None:
                async with self.systemd(tmp_path) as systemd:
                    await body(systemd)

            asyncio.run(main())

        return run

    def test_tells_a_running_unit(self, run: Callable[..., None]) -> None:
        async def body(systemd: Systemd) -> None:
            unit = await systemd.unit(UNIT)
            assert (unit.name, unit.load_state, unit.active_state, unit.main_pid) == (UNIT, "loaded", "active", 4242)

        run(body)

    def test_a_unit_that_is_not_there_is_not_found(self, run: Callable[..., None]) -> None:
        async def body(systemd: Systemd) -> None:
            assert (await systemd.unit("nothing.service")).load_state == "not-found"

        run(body)

    @pytest.mark.parametrize("verb", ["restart", "start", "stop"])
    def test_a_job_ends_done_and_has_a_number(self, run: Callable[..., None], verb: str) -> None:
        async def body(systemd: Systemd) -> None:
            outcome = await getattr(systemd, verb)(UNIT, deadline=SOON)
            assert outcome.done
            assert outcome.job is not None

        run(body)

    def test_a_job_on_an_unknown_unit_is_refused(self, run: Callable[..., None]) -> None:
        async def body(systemd: Systemd) -> None:
            outcome = await systemd.restart("nothing.service", deadline=SOON)
            assert (outcome.result, outcome.job) == ("refused", None)
            assert "nothing.service not found" in outcome.why

        run(body)

    def test_a_pid_has_a_unit_or_none(self, run: Callable[..., None]) -> None:
        async def body(systemd: Systemd) -> None:
            assert await systemd.unit_of_pid(4242) == UNIT
            assert await systemd.unit_of_pid(1) is None

        run(body)

    def test_a_failed_state_of_an_unknown_unit_cannot_be_reset(self, run: Callable[..., None]) -> None:
        async def body(systemd: Systemd) -> None:
            await systemd.reset_failed(UNIT)
            with pytest.raises(SystemdError) as caught:
                await systemd.reset_failed("nothing.service")
            assert caught.value.kind == "refused"

        run(body)


class TestSystemdBus(AnySystemd):
    @asynccontextmanager
    async def systemd(self, folder: Path) -> AsyncIterator[Systemd]:
        manager = FakeManager(folder)
        manager.units[UNIT] = {
            "org.freedesktop.systemd1.Unit": {
                "Id": Variant("s", UNIT),
                "LoadState": Variant("s", "loaded"),
                "ActiveState": Variant("s", "active"),
            },
            "org.freedesktop.systemd1.Service": {"MainPID": Variant("u", 4242)},
        }
        manager.pids[4242] = unit_path(UNIT)
        manager.listen()
        systemd = SystemdBus(bus=None, private=manager.private)
        try:
            yield systemd
        finally:
            systemd.close()
            await manager.close()


class TestFakeSystemd(AnySystemd):
    @asynccontextmanager
    async def systemd(self, folder: Path) -> AsyncIterator[Systemd]:
        systemd = FakeSystemd(FakeClock())
        systemd.add(UNIT, main_pid=4242)
        yield systemd
