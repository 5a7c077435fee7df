"""From a finding to the services that it hurts."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain.model import Finding, Severity
from bandog.host.clock import SystemClock
from bandog.host.paths import Paths
from bandog.services.locate import Locator
from bandog.services.registry import Registry, Service
from bandog.testing import FakeHost
from samples import finding

GPU = "0000:e5:00.0"
QWEN = Service(name="qwen", unit="vllm-qwen.service", gpus=(GPU,))
LLAMA = Service(name="llama", unit="llama.service", gpus=("GPU-5a",))
GROUP = "/system.slice/vllm-qwen.service"
ID = "0123456789abcdef" * 4


class Lab:
    """A fake host with a locator for two services; `found` makes a finding of now."""

    def __init__(self, root: Path) -> None:
        self.host = FakeHost(root)
        self.locator = Locator(self.host.paths, Registry((QWEN, LLAMA)))

    def process(self, pid: int, group: str = GROUP, *, comm: str = "python3", start: int = 1000) -> None:
        self.host.task(pid, comm, cgroup=group, start=start)
        here = self.host.paths.sys / f"fs/cgroup{group}/cgroup.procs"
        others = [int(word) for word in here.read_text().split()] if here.exists() else []
        self.host.cgroup(group, *others, pid)

    def end(self, pid: int, group: str = GROUP) -> None:
        for file in sorted((self.host.paths.proc / str(pid)).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (self.host.paths.proc / str(pid)).rmdir()
        here = self.host.paths.sys / f"fs/cgroup{group}/cgroup.procs"
        here.write_text("".join(f"{word}\n" for word in here.read_text().split() if word != str(pid)))

    def later(self, seconds: int) -> None:
        self.host.clock.advance(timedelta(seconds=seconds))
        self.host.boot()

    def found(self, subject: str = f"gpu:{GPU}", *, kind: str = "nvidia.xid", **facts: Any) -> Finding:
        at = self.host.clock.now()
        return Finding(kind=kind, subject=subject, severity=Severity.ERROR, at=at, facts=facts)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_the_process_named_leads_to_its_unit_and_service(lab: Lab) -> None:
    lab.process(500)
    lab.locator.refresh()
    finding = lab.locator.annotate(lab.found("gpu:0000:01:00.0", xid=94, pid=500))
    assert finding.services == ("qwen",)
    assert finding.facts["unit"] == "vllm-qwen.service"


def test_a_process_that_is_not_in_the_table_yet_is_read_directly(lab: Lab) -> None:
    lab.locator.refresh()
    lab.process(500)
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=94, pid=500)) == ("qwen",)


def test_a_thread_leads_to_its_process(lab: Lab) -> None:
    lab.process(500)
    lab.host.task(501, "worker", cgroup=GROUP)
    lab.locator.refresh()
    assert lab.locator.locate(lab.found("task:worker", kind="task.hung", pid=501)) == ("qwen",)
    assert lab.locator.locate(lab.found("task:gone", kind="task.hung", pid=777, tgid=500)) == ("qwen",)


def test_a_dead_process_is_remembered_for_ten_minutes(lab: Lab) -> None:
    lab.process(500)
    lab.locator.refresh()
    lab.end(500)
    finding = lab.found("gpu:0000:01:00.0", xid=94, pid=500)
    for _ in range(9):
        lab.later(60)
        lab.locator.refresh()
        assert lab.locator.locate(finding) == ("qwen",)
    lab.later(90)
    lab.locator.refresh()
    assert lab.locator.locate(finding) == ()


def test_a_pid_that_was_used_again_means_the_process_that_lived_then(lab: Lab) -> None:
    lab.process(500)
    lab.locator.refresh()
    finding = lab.found("gpu:0000:01:00.0", xid=94, pid=500)
    lab.end(500)
    lab.later(61)
    lab.process(500, "/system.slice/ssh.service", start=100 * 3655)
    lab.locator.refresh()
    assert lab.locator.locate(finding) == ("qwen",)
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=94, pid=500)) == ()


def test_a_process_younger_than_the_record_is_not_the_one_it_names(lab: Lab) -> None:
    lab.locator.refresh()
    finding = lab.found("gpu:0000:01:00.0", xid=94, pid=500)
    lab.process(500, start=100 * 3700)
    assert lab.locator.locate(finding) == ()


def test_a_record_of_another_boot_names_no_process_of_this_one(lab: Lab) -> None:
    lab.process(500)
    finding = lab.found("gpu:0000:01:00.0", xid=94, pid=500)
    lab.host.clock.reboot()
    lab.host.boot()
    lab.locator.refresh()
    assert lab.locator.locate(finding) == ()


@pytest.mark.parametrize("xid", [119, 120, 143, 154])
def test_where_the_pid_is_a_messenger_the_gpu_tells(lab: Lab, xid: int) -> None:
    lab.process(500, "/system.slice/llama.service")
    lab.locator.refresh()
    finding = lab.locator.annotate(lab.found(xid=xid, pid=500))
    assert finding.services == ("qwen",)
    assert "unit" not in finding.facts


def test_without_a_process_the_gpu_tells_by_address_or_uuid(lab: Lab) -> None:
    assert lab.locator.locate(lab.found(xid=79)) == ("qwen",)
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=79)) == ()
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=79, uuid="GPU-5a")) == ("llama",)


def test_somebody_elses_fault_on_a_gpu_that_goes_on_hurts_none_of_ours(lab: Lab) -> None:
    lab.process(500, "/user.slice/user-1000.slice/session-3.scope")
    lab.locator.refresh()
    assert lab.locator.locate(lab.found(xid=31, pid=500, usable="yes")) == ()
    assert lab.locator.locate(lab.found(xid=48, pid=500, usable="no")) == ("qwen",)


def test_a_process_that_was_never_among_ours_is_somebody_elses_if_we_looked(lab: Lab) -> None:
    """A user's program that faults and is gone within a second must not cost a service its life."""
    early = lab.found(xid=31, pid=777, usable="yes")
    assert lab.locator.locate(early) == ("qwen",), "no table yet: it may have been ours"
    lab.later(5)
    lab.locator.refresh()
    assert lab.locator.locate(early) == ("qwen",), "it came before we looked"
    lab.later(5)
    assert lab.locator.locate(lab.found(xid=31, pid=777, usable="yes")) == ()
    assert lab.locator.locate(lab.found(xid=48, pid=777, usable="no")) == ("qwen",)
    assert lab.locator.locate(lab.found(xid=31, usable="yes")) == ("qwen",), "no process named"
    lab.later(120)
    late = lab.found(xid=31, pid=777, usable="yes")
    assert lab.locator.locate(late) == ("qwen",), "nobody has looked for two minutes"
    lab.locator.refresh()
    assert lab.locator.locate(late) == ("qwen",), "nor had they when it came"


def test_the_holder_of_a_lock_comes_before_who_waits_for_it(lab: Lab) -> None:
    lab.process(500)
    lab.process(600, "/system.slice/llama.service")
    lab.locator.refresh()
    finding = lab.found("task:nvidia-smi", kind="task.hung", pid=600, holder="VLLM", holder_pid=500)
    assert lab.locator.locate(finding) == ("qwen", "llama")


def test_glued_text_leads_to_no_process(lab: Lab) -> None:
    lab.process(500)
    lab.locator.refresh()
    assert lab.locator.locate(lab.found("task:x", kind="task.hung", pid=500, glued=True)) == ()


def test_a_stated_unit_is_enough(lab: Lab) -> None:
    assert lab.locator.locate(lab.found("task:x", kind="process.oom-killed", unit="llama.service")) == ("llama",)


def test_a_finding_on_a_service_is_of_that_service(lab: Lab) -> None:
    assert lab.locator.locate(lab.found("service:qwen", kind="service.down")) == ("qwen",)


@pytest.mark.parametrize(
    "group", [f"/system.slice/docker-{ID}.scope", f"/docker/{ID}", f"/machine.slice/libpod-{ID}.scope/container"]
)
def test_a_container_belongs_to_the_unit_whose_client_started_it(lab: Lab, group: str) -> None:
    lab.process(500, comm="docker")
    lab.host.write("/proc/500/cmdline", b"/usr/bin/docker\0run\0--name\0vllm\0image\0")
    lab.host.write(f"/var/lib/docker/containers/{ID}/config.v2.json", '{"Name": "/vllm"}')
    lab.process(900, group)
    lab.locator.refresh()
    finding = lab.locator.annotate(lab.found("gpu:0000:01:00.0", xid=94, pid=900))
    assert (finding.services, finding.facts["unit"]) == (("qwen",), "vllm-qwen.service")


def test_conmon_in_the_units_group_names_the_container_by_its_id(lab: Lab) -> None:
    lab.process(500, comm="conmon")
    lab.host.write("/proc/500/cmdline", f"conmon\0-c\0{ID}\0".encode())
    lab.process(900, f"/machine.slice/libpod-{ID}.scope")
    lab.locator.refresh()
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=94, pid=900)) == ("qwen",)


def test_a_container_that_starts_between_two_walks_is_known_by_the_next_refresh(lab: Lab) -> None:
    lab.locator.refresh()
    lab.later(5)
    lab.process(900, "/system.slice/vllm-qwen.service/libpod-payload-" + ID)
    lab.locator.refresh()
    lab.end(900, "/system.slice/vllm-qwen.service/libpod-payload-" + ID)
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=94, pid=900)) == ("qwen",)


def test_a_new_registry_counts_at_once(lab: Lab) -> None:
    lab.process(500)
    lab.locator.refresh()
    lab.locator.registry = Registry((Service(name="other", unit="vllm-qwen.service"),))
    assert lab.locator.locate(lab.found("gpu:0000:01:00.0", xid=94, pid=500)) == ("other",)


def test_nothing_to_add_leaves_the_finding_as_it_is(lab: Lab) -> None:
    finding = lab.found("host", kind="host.crashed")
    assert lab.locator.annotate(finding) is finding


def test_the_table_of_this_machine_holds_this_process() -> None:
    clock, locator = SystemClock(Paths()), Locator(Paths(), Registry((QWEN,)))
    locator.refresh()
    found = finding(at=clock.now(), subject="gpu:0000:01:00.0", facts={"pid": os.getpid()})
    assert locator.locate(found) == ()


@given(
    st.dictionaries(
        st.sampled_from(["pid", "tgid", "holder_pid", "unit", "xid", "uuid", "usable"]),
        st.one_of(st.integers(), st.text(max_size=5), st.booleans(), st.floats(allow_nan=False)),
    ),
    st.text(max_size=12),
)
def test_any_finding_has_an_answer(facts: dict[str, Any], subject: str) -> None:
    clock, locator = SystemClock(Paths()), Locator(Paths(), Registry((QWEN, LLAMA)))
    finding = Finding(kind="x.y", subject=subject, severity=Severity.INFO, at=clock.now(), facts=facts)
    assert set(locator.locate(finding)) <= {"qwen", "llama", subject.partition(":")[2]}
