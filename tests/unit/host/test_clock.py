"""The clocks of the host; the real one and its double answer to the same tests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bandog import Clock
from bandog.host.boot import boot_facts, boot_id, plain_boot_id
from bandog.host.clock import SystemClock, monotonic_usec
from bandog.host.hostname import short_hostname
from bandog.host.paths import Paths
from bandog.testing import FakeClock, FakeHost


class AnyClock(ABC):
    """What holds for every clock."""

    @abstractmethod
    def clock(self) -> Clock:
        """Return the clock under test."""

    def test_never_goes_back(self) -> None:
        clock = self.clock()
        first = clock.now()
        assert clock.now().since(first) >= timedelta()

    def test_the_boot_id_is_32_hex_digits(self) -> None:
        assert plain_boot_id(self.clock().now().boot_id) == self.clock().now().boot_id

    def test_utc_is_aware(self) -> None:
        assert self.clock().now().utc.tzinfo is UTC

    def test_a_kernel_stamp_keeps_its_distance(self) -> None:
        clock = self.clock()
        early, late = clock.at_kernel_time(5_000_000), clock.at_kernel_time(7_500_000)
        assert abs(late.since(early) - timedelta(seconds=2.5)) < timedelta(milliseconds=50)
        assert abs(late.utc - early.utc - timedelta(seconds=2.5)) < timedelta(milliseconds=50)
        assert early.boot_id == clock.now().boot_id

    def test_sleeping_for_no_time_returns(self) -> None:
        asyncio.run(self.clock().sleep(timedelta(seconds=-1)))


class TestSystemClock(AnyClock):
    def clock(self) -> Clock:
        return SystemClock(Paths())

    def test_a_stamp_taken_now_is_now(self) -> None:
        clock = self.clock()
        assert abs(clock.now().since(clock.at_kernel_time(monotonic_usec()))) < timedelta(milliseconds=50)

    def test_without_a_boot_id_there_is_no_clock(self, tmp_path: Path) -> None:
        with pytest.raises(OSError):
            SystemClock(Paths(root=tmp_path))


class TestFakeClock(AnyClock):
    def clock(self) -> Clock:
        return FakeClock()

    def test_sleep_ends_when_the_clock_is_advanced_past_it(self) -> None:
        async def main() -> list[str]:
            clock = FakeClock()
            woken: list[str] = []

            async def sleeper(name: str, seconds: int) -> None:
                await clock.sleep(timedelta(seconds=seconds))
                woken.append(name)

            tasks = [asyncio.create_task(sleeper("b", 5)), asyncio.create_task(sleeper("a", 3))]
            await clock.run(timedelta(seconds=4))
            assert woken == ["a"]
            assert clock.sleeping == 1
            await clock.run(timedelta(seconds=1))
            await asyncio.gather(*tasks)
            return woken

        assert asyncio.run(main()) == ["a", "b"]

    def test_a_reboot_begins_another_boot(self) -> None:
        clock = FakeClock()
        before = clock.now()
        after = clock.reboot(down=timedelta(minutes=3))
        assert after.boot_id != before.boot_id
        assert after.since(before) == timedelta(minutes=3)
        clock.set_utc(datetime(2000, 1, 1, tzinfo=UTC), synced=False)
        assert clock.now().since(before) == timedelta(seconds=20)


def test_the_boot_id_is_read_without_dashes(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    assert boot_id(host.paths) == host.clock.now().boot_id
    facts = boot_facts(host.paths)
    assert (facts.boot_id, facts.kernel, facts.up) == (boot_id(host.paths), "6.12.0-fake", timedelta(hours=1))


@pytest.mark.parametrize("text", ["", "zz", "12345", "g" * 32])
def test_what_is_no_boot_id_is_refused(tmp_path: Path, text: str) -> None:
    host = FakeHost(tmp_path)
    host.write("/proc/sys/kernel/random/boot_id", text)
    with pytest.raises(ValueError, match="is no boot id"):
        boot_id(host.paths)


@pytest.mark.parametrize(
    ("text", "name"), [("gpu07.example.org\n", "gpu07"), ("gpu07\n", "gpu07"), ("\n", "localhost")]
)
def test_the_host_name_is_short(tmp_path: Path, text: str, name: str) -> None:
    host = FakeHost(tmp_path)
    host.write("/proc/sys/kernel/hostname", text)
    assert short_hostname(host.paths) == name


def test_a_host_without_a_name_is_localhost(tmp_path: Path) -> None:
    assert short_hostname(Paths(root=tmp_path)) == "localhost"
