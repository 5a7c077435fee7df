"""`bandog doctor` says what would keep bandog from seeing or acting, with the exact fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandog.host.checkup import TOPICS, Check, containers, hung_task, journal, sources, systemd
from bandog.host.paths import Paths


def write(root: Path, **files: str) -> Paths:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Paths(root=root)


def by_name(checks: object) -> dict[str, Check]:
    return {check.name: check for check in checks}  # type: ignore[attr-defined]


def test_an_empty_host_is_never_called_healthy(tmp_path: Path) -> None:
    checks = [check for look in TOPICS.values() for check in look(Paths(root=tmp_path))]
    assert {check.topic for check in checks} == set(TOPICS)
    assert all(check.state != "ok" for check in checks if check.topic != "containers")


def test_without_systemd_the_way_out_is_named(tmp_path: Path) -> None:
    check = by_name(systemd(Paths(root=tmp_path)))["pid1"]
    assert check.state == "bad"
    assert "run bandog on the host itself" in check.fix


def test_everything_that_is_not_well_and_can_be_mended_names_the_fix(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        proc__sys__kernel__hung_task_timeout_secs="0\n",
        proc__sys__kernel__hung_task_warnings="0\n",
        run__systemd__system__x="",
        dev__watchdog0="",
    )
    checks = [check for look in TOPICS.values() for check in look(paths)]
    assert [check.name for check in checks if check.state in ("warn", "bad") and not check.fix] == []


@pytest.mark.parametrize(
    ("warnings", "state"), [("-1", "ok"), ("10", "warn"), ("0", "bad")], ids=["unlimited", "some", "used up"]
)
def test_a_kernel_that_has_used_up_its_reports_is_blind(tmp_path: Path, warnings: str, state: str) -> None:
    paths = write(
        tmp_path,
        proc__sys__kernel__hung_task_timeout_secs="120\n",
        proc__sys__kernel__hung_task_warnings=f"{warnings}\n",
    )
    assert by_name(hung_task(paths))["warnings"].state == state


def test_a_large_kernel_buffer_is_recognised(tmp_path: Path) -> None:
    paths = write(tmp_path, proc__cmdline="quiet log_buf_len=16M\n")
    assert by_name(sources(paths))["ring"].state == "ok"


def test_memory_controllers_and_the_driver_are_recognised(tmp_path: Path) -> None:
    paths = write(tmp_path, sys__devices__system__edac__mc__mc0__x="", sys__module__nvidia__version="595.45.04\n")
    found = by_name(sources(paths))
    assert (found["edac"].state, found["nvidia"].what) == ("ok", "NVIDIA driver 595.45.04 is loaded")


def test_a_watchdog_device_that_nobody_arms_is_a_warning(tmp_path: Path) -> None:
    paths = write(tmp_path, run__systemd__system__x="", dev__watchdog0="")
    assert by_name(systemd(paths))["hardware-watchdog"].state == "warn"
    write(tmp_path, **{"etc__systemd__system.conf": "[Manager]\nRuntimeWatchdogSec=60s\n"})
    assert by_name(systemd(paths))["hardware-watchdog"].state == "ok"


def test_a_journal_on_disk_is_well(tmp_path: Path) -> None:
    assert by_name(journal(write(tmp_path, var__log__journal__x="")))["persistence"].state == "ok"


def test_a_running_container_without_gpu_nodes_is_no_risk(tmp_path: Path) -> None:
    paths = write(tmp_path, **{"sys__fs__cgroup__system.slice__docker-1.scope__x": ""})
    assert by_name(containers(paths))["reload"].state == "ok"
