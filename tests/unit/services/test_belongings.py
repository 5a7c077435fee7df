"""Whose a process is, by its control group and by the container that a unit has started."""

from __future__ import annotations

from pathlib import Path

from bandog import UnitProcesses, whose
from bandog.testing import FakeHost

UNIT = "vllm-qwen.service"
GROUP = f"/system.slice/{UNIT}"
CONTAINER = "a" * 64
SCOPE = f"/system.slice/docker-{CONTAINER}.scope"


def host(tmp_path: Path) -> FakeHost:
    """A unit of a worker and a docker client, the container that it runs, and a notebook."""
    host = FakeHost(tmp_path)
    host.task(100, "VLLM::Worker_TP", cgroup=GROUP)
    host.task(101, "docker", cgroup=GROUP)
    host.write("/proc/101/cmdline", "docker\0run\0--rm\0--name\0qwen\0vllm\0")
    host.cgroup(GROUP, 100, 101)
    host.task(200, "python3", cgroup=SCOPE)
    host.write(f"/var/lib/docker/containers/{CONTAINER}/config.v2.json", '{"Name": "/qwen"}')
    host.task(300, "jupyter\x1b", cgroup="/system.slice/jupyter.service")
    return host


def test_the_units_processes_and_those_of_its_container_are_its_own(tmp_path: Path) -> None:
    ours = UnitProcesses(host(tmp_path).paths, UNIT, GROUP)
    assert [ours.owns(pid) for pid in (100, 101, 200, 300, 999)] == [True, True, True, False, False]


def test_a_container_of_somebody_else_is_not_ours(tmp_path: Path) -> None:
    one = host(tmp_path)
    one.write(f"/var/lib/docker/containers/{CONTAINER}/config.v2.json", '{"Name": "/other"}')
    assert not UnitProcesses(one.paths, UNIT, GROUP).owns(200)


def test_the_command_line_of_a_client_in_d_state_is_left_alone(tmp_path: Path) -> None:
    one = host(tmp_path)
    one.task(101, "docker", "D", cgroup=GROUP)
    assert not UnitProcesses(one.paths, UNIT, GROUP).owns(200)


def test_a_process_is_named_with_its_unit_and_container(tmp_path: Path) -> None:
    paths = host(tmp_path).paths
    assert whose(paths, 100) == f"VLLM::Worker_TP (pid 100, {UNIT})"
    assert whose(paths, 200) == f"python3 (pid 200, docker-{CONTAINER}.scope, container qwen)"
    assert whose(paths, 300) == "jupyter? (pid 300, jupyter.service)"
    assert whose(paths, 999) == "pid 999"
