"""The public test kit: what it promises to authors of plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from bandog import (
    ChildOutcome,
    Finding,
    HttpReply,
    Instant,
    JobOutcome,
    LogDetector,
    Readiness,
    Record,
    Severity,
    SystemdError,
    subjects,
    task_state,
    tasks_in_cgroup,
)
from bandog.services.registry import Service
from bandog.testing import FakeClock, FakeHost, FakeServices, FakeSite, FakeSystemd, feed, kernel_records, settle


class Blocks(LogDetector):
    """Opens at BEGIN, counts lines, states the count at END or at the flush."""

    name = "blocks"
    needles: ClassVar[tuple[bytes, ...]] = (b"BEGIN",)

    def feed(self, record: Record) -> Iterable[Finding]:
        if record.text.startswith("BEGIN"):
            self.open, self.lines = True, 0
            self.first = record
        elif record.text.startswith("END"):
            yield self.state()
        else:
            self.lines += 1

    def flush(self, now: Instant) -> Iterable[Finding]:
        yield self.state()

    def state(self) -> Finding:
        self.open = False
        return Finding.of(
            self.first, kind="test.block", subject=subjects.HOST, severity=Severity.INFO, facts={"lines": self.lines}
        )


def test_feed_gives_an_open_detector_every_line_and_flushes_at_the_end() -> None:
    findings = feed(Blocks(), "noise\nBEGIN\none\ntwo\nEND\nnoise\nBEGIN\nthree")
    assert [finding.facts["lines"] for finding in findings] == [2, 1]
    assert [finding.line for finding in findings] == [2, 7]
    assert all(finding.live for finding in findings)


def test_feed_takes_an_item_of_a_list_as_one_record() -> None:
    assert [finding.facts["lines"] for finding in feed(Blocks(), ["BEGIN", "one\nstill one", "END"])] == [1]


def test_kernel_records_end_at_the_clocks_moment() -> None:
    clock = FakeClock()
    first, last = kernel_records("a\nb", clock=clock, live=False)
    assert last.at == clock.now()
    assert last.at.since(first.at) == timedelta(milliseconds=1)
    assert not first.live
    assert clock.at_kernel_time(last.usec or 0) == last.at


def test_a_fake_task_is_read_by_the_real_reader(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.task(100, "VLLM::Worker) D (", "D", start=77, switches=5, cpu_ticks=9)
    host.task(100, "thread", "S", tid=101)
    host.cgroup("/system.slice/vllm.service", 100)
    task = task_state(host.paths, 100)
    assert task is not None
    assert (task.comm, task.state, task.start, task.switches, task.cpu_ticks) == ("VLLM::Worker) D (", "D", 77, 5, 9)
    assert [one.pid for one in tasks_in_cgroup(host.paths, "/system.slice/vllm.service")] == [100, 101]


def test_a_job_on_a_fake_unit_changes_it_as_systemd_would() -> None:
    async def main() -> None:
        clock = FakeClock()
        systemd = FakeSystemd(clock)
        before = systemd.add("vllm.service")
        clock.advance(timedelta(seconds=5))
        assert (await systemd.restart("vllm.service", deadline=timedelta(seconds=1))).done
        after = await systemd.unit("vllm.service")
        assert after.main_pid not in (None, before.main_pid)
        assert after.invocation_id != before.invocation_id
        assert after.active_enter - before.active_enter == timedelta(seconds=5)
        await systemd.stop("vllm.service", deadline=timedelta(seconds=1))
        assert (await systemd.unit("vllm.service")).main_pid is None
        assert [job.verb for job in systemd.jobs] == ["restart", "stop"]

    asyncio.run(main())


def test_scripted_jobs_end_as_scripted_then_succeed() -> None:
    async def main() -> None:
        systemd = FakeSystemd(FakeClock())
        systemd.add("a.service")
        systemd.script("restart", "a.service", "failed", JobOutcome(result="canceled"), SystemdError("timeout", "no"))
        deadline = timedelta(seconds=1)
        assert (await systemd.restart("a.service", deadline=deadline)).result == "failed"
        assert (await systemd.unit("a.service")).active_state == "failed"
        await systemd.reset_failed("a.service")
        assert (await systemd.unit("a.service")).active_state == "inactive"
        assert await systemd.restart("a.service", deadline=deadline) == JobOutcome(result="canceled", job=2)
        with pytest.raises(SystemdError):
            await systemd.restart("a.service", deadline=deadline)
        assert (await systemd.restart("a.service", deadline=deadline)).done

    asyncio.run(main())


def test_a_held_job_waits_for_its_release_or_its_deadline_by_the_fake_clock() -> None:
    async def main() -> None:
        clock = FakeClock()
        systemd = FakeSystemd(clock)
        systemd.add("a.service")
        release = systemd.hold()
        late = asyncio.create_task(systemd.restart("a.service", deadline=timedelta(seconds=30)))
        await clock.run(timedelta(seconds=31))
        assert (await late).result == "timeout"
        freed = asyncio.create_task(systemd.restart("a.service", deadline=timedelta(seconds=30)))
        await settle()
        assert not freed.done()
        release.set()
        assert (await freed).done

    asyncio.run(main())


def test_a_disconnected_systemd_takes_no_job() -> None:
    async def main() -> None:
        systemd = FakeSystemd(FakeClock())
        systemd.disconnect()
        with pytest.raises(SystemdError) as caught:
            await systemd.restart("a.service", deadline=timedelta(seconds=1))
        assert (caught.value.kind, systemd.jobs) == ("disconnected", [])
        systemd.reconnect()
        outcome = await systemd.restart("a.service", deadline=timedelta(seconds=1))
        assert outcome.result == "refused"

    asyncio.run(main())


def test_a_site_answers_as_scripted_and_keeps_what_was_asked(tmp_path: Path) -> None:
    site = FakeSite(FakeHost(tmp_path), services=FakeServices(Service(name="qwen", unit="vllm.service")))
    site.child_results = lambda argv: ChildOutcome(code=3)
    site.http_results = lambda method, url: HttpReply(status=503)
    assert site.child(["true"], deadline=timedelta(seconds=1)).code == 3
    assert not site.http("GET", "http://x/", deadline=timedelta(seconds=1)).ok
    assert (site.children, site.requests) == ([("true",)], [("GET", "http://x/")])
    site.services.readiness["qwen"] = [Readiness(ready=False), Readiness(ready=True)]
    assert [site.services.ready("qwen").ready for _ in range(3)] == [False, True, True]
    site.systemd.add("vllm.service")
    unit = site.wait(site.systemd.unit("vllm.service"), deadline=timedelta(seconds=1))
    assert unit.active_state == "active"
