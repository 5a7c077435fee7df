"""Control groups in the layouts that systemd knows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bandog.host import cgroups
from bandog.host.paths import Paths
from bandog.testing import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.mark.parametrize(
    ("listing", "group"),
    [
        ("0::/system.slice/a.service\n", "/system.slice/a.service"),
        ("0::/system.slice/a.service (deleted)\n", "/system.slice/a.service"),
        ("9:name=systemd:/system.slice/a.service\n4:memory:/x\n0::/\n", "/system.slice/a.service"),
        ("9:name=systemd:/legacy\n0::/system.slice/a.service\n", "/system.slice/a.service"),
        ("9:name=systemd:/system.slice/a\\x2db.service\n4:memory:/x\n", "/system.slice/a\\x2db.service"),
        ("0::/a:b/c\n", "/a:b/c"),
        ("0::/\n", "/"),
        ("", None),
        ("rubbish", None),
    ],
)
def test_the_path_is_systemds_own_in_every_layout(listing: str, group: str | None) -> None:
    assert cgroups.of_listing(listing) == group


def test_this_process_has_a_group() -> None:
    assert str(cgroups.control_group(Paths(), os.getpid())).startswith("/")


def test_on_a_hybrid_host_units_are_found_in_systemds_hierarchy(host: FakeHost) -> None:
    host.write("/sys/fs/cgroup/systemd/system.slice/a.service/cgroup.procs", "5\n")
    host.write("/sys/fs/cgroup/unified/cgroup.procs", "")
    assert cgroups.processes_in(host.paths, "/system.slice/a.service") == [5]
    assert set(cgroups.folders_of_units(host.paths, ["a.service"])) == {"a.service"}


@pytest.mark.parametrize(
    ("unit", "group"),
    [
        ("a.service", "/system.slice/a.service"),
        ("a@0.service", "/system.slice/system-a.slice/a@0.service"),
        ("memory.service", "/system.slice/_memory.service"),
        ("_x.service", "/system.slice/__x.service"),
        ("u.service", "/user.slice/user-1000.slice/user@1000.service/app.slice/u.service"),
        ("c.scope", "/c.scope"),
    ],
)
def test_a_units_group_is_found_in_any_slice(host: FakeHost, unit: str, group: str) -> None:
    host.cgroup(group, 5)
    folders = cgroups.folders_of_units(host.paths, [unit, "absent.service"])
    assert folders == {unit: f"{host.paths.sys}/fs/cgroup{group}"}
    assert cgroups.unescaped(group.rpartition("/")[2]) == unit


def test_a_group_that_cannot_be_listed_is_empty(host: FakeHost) -> None:
    host.write("/sys/fs/cgroup/a/cgroup.procs/not-a-file", "")
    assert cgroups.processes_in(host.paths, "/a") == []
    assert cgroups.processes_in(host.paths, "/") == []
