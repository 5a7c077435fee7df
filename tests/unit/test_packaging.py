"""What packaging promises and no linter knows: one version, hashed locks, and the check before a reload."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from bandog.services.adopt_record import MUTED, NAMES, Link, Record

TOP = Path(__file__).parents[2]


def locked(name: str) -> dict[str, str]:
    """Return package → pinned version of a lock file; each must carry a hash."""
    text = (TOP / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        match = re.match(r"([a-z0-9._-]+)==(\S+)", line)
        if match:
            assert "--hash=sha256:" in line, f"{name}: {match[1]} has no hash"
            found[match[1]] = match[2]
    return found


def test_the_package_and_the_project_have_one_version() -> None:
    version = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["version"]
    assert (TOP / "debian/changelog").read_text().startswith(f"bandog ({version}) ")
    for page in ("bandog.8", "bandog.yaml.5"):
        assert f"bandog {version}" in (TOP / "packaging/man" / page).read_text().split("\n")[0]


def test_every_dependency_is_locked_with_its_hashes() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    runtime, dev = locked("requirements.txt"), locked("requirements-dev.txt")
    for wanted, lock in (
        (project["project"]["dependencies"], runtime),
        (project["dependency-groups"]["dev"], dev),
        (project["build-system"]["requires"], locked("build-requirements.txt")),
    ):
        names = {re.split(r"[<>=~ \[]", one)[0].lower().replace("_", "-") for one in wanted}
        assert names <= set(lock), f"run make lock: {names - set(lock)}"
    assert runtime.items() <= dev.items(), "tests run with other versions than the package: run make lock"


def test_the_unit_keeps_what_the_design_asks() -> None:
    unit = (TOP / "packaging/systemd/bandog.service").read_text().splitlines()
    for line in (
        "Type=notify",
        "KillMode=process",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "OOMPolicy=continue",
        "StateDirectory=bandog",
        "StateDirectoryMode=0700",
    ):
        assert line in unit
    assert not [line for line in unit if line.startswith("RuntimeDirectory=")]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return the root of a host with one container that uses a GPU, and a systemctl that says `policy`."""
    scope = tmp_path / "sys/fs/cgroup/system.slice/docker-abc.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text("")
    (scope / "init").mkdir()
    (scope / "init/cgroup.procs").write_text("77\n78\n")
    node = tmp_path / "proc/77/root/dev/nvidia0"
    node.parent.mkdir(parents=True)
    node.touch()
    return tmp_path


def at_risk(host: Path, *, policy: str, allow: str = "") -> subprocess.CompletedProcess[str]:
    """Run the check on `host`, whose systemd answers these two properties for every scope."""
    tools = host / "bin"
    tools.mkdir(exist_ok=True)
    systemctl = tools / "systemctl"
    systemctl.write_text(f'#!/bin/sh\ncase $3 in DevicePolicy) echo "{policy}" ;; *) echo "{allow}" ;; esac\n')
    systemctl.chmod(0o755)
    return subprocess.run(
        [str(TOP / "packaging/gpu-containers-at-risk"), "--root", str(host)],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_a_container_whose_scope_does_not_allow_its_gpu_is_at_risk(host: Path) -> None:
    answer = at_risk(host, policy="strict", allow="char-pts rwm /dev/null rwm")
    assert (answer.returncode, answer.stdout) == (1, "docker-abc.scope (process 77 uses /dev/nvidia0)\n")


def test_a_scope_that_allows_the_nodes_or_restricts_nothing_is_safe(host: Path) -> None:
    assert at_risk(host, policy="strict", allow="/dev/nvidia0 rw").returncode == 0
    assert at_risk(host, policy="auto").returncode == 0


def test_a_container_without_gpu_or_without_processes_is_safe(host: Path) -> None:
    (host / "proc/77/root/dev/nvidia0").unlink()
    assert at_risk(host, policy="strict").returncode == 0
    (host / "sys/fs/cgroup/system.slice/docker-abc.scope/init/cgroup.procs").write_text("")
    assert at_risk(host, policy="strict").returncode == 0


def adopted_units(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a tree; its systemctl writes down what it was asked."""
    tools = root / "bin"
    tools.mkdir(exist_ok=True)
    systemctl = tools / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {root}/asked\n')
    systemctl.chmod(0o755)
    return subprocess.run(
        [str(TOP / "packaging/adopted-units"), "--root", str(root), *words],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


UNIT = "a\\x2db.service"
WANTS = f"etc/systemd/system/multi-user.target.wants/{UNIT}"
MUTE = "etc/containers/systemd/q.container.d/zzz-bandog-start.conf"


@pytest.fixture
def adopted(tmp_path: Path) -> Path:
    """Return the root of a host with an adopted unit, an adopted quadlet, and one that was never started at boot."""
    records = [
        Record(
            unit=UNIT,
            place=f"/etc/systemd/system/{UNIT}.d/50-bandog.conf",
            links=(Link(path=f"/{WANTS}", target=f"/etc/systemd/system/{UNIT}"),),
        ),
        Record(unit="q.service", place="/etc/containers/systemd/q.container.d/50-bandog.conf", mute=f"/{MUTE}"),
        Record(unit="idle.service", place="/etc/systemd/system/idle.service.d/zzz-bandog.conf"),
    ]
    for one in records:
        place = tmp_path / one.place[1:]
        place.parent.mkdir(parents=True)
        place.write_text(f"{one.head}[Service]\n")
    (tmp_path / MUTE).write_text("[Install]\nWantedBy=\nRequiredBy=\n")
    other = tmp_path / "etc/systemd/system/other.service.d/50-bandog.conf"
    other.parent.mkdir()
    other.write_text("[Service]\n")  # somebody's own, of the same name
    return tmp_path


def test_the_shell_reads_the_records_that_python_writes(adopted: Path) -> None:
    assert sorted(adopted_units(adopted, "list").stdout.split()) == [UNIT, "q.service"]
    assert adopted_units(adopted, "start").returncode == 0
    asked = (adopted / "asked").read_text().splitlines()
    assert sorted(asked) == [f"start --no-block -- {UNIT}", "start --no-block -- q.service"]
    assert adopted_units(adopted).returncode == 2


def test_a_removed_package_gives_the_start_back_and_an_installed_one_takes_it(adopted: Path) -> None:
    for _ in range(2):  # done twice is done once
        assert adopted_units(adopted, "give-back").returncode == 0
        assert (adopted / WANTS).readlink() == Path(f"/etc/systemd/system/{UNIT}")
        assert not (adopted / MUTE).exists()
    assert adopted_units(adopted, "take").returncode == 0
    assert not os.path.lexists(adopted / WANTS) and (adopted / MUTE).read_text() == MUTED


def test_what_an_administrator_put_there_meanwhile_stays(adopted: Path) -> None:
    (adopted / WANTS).parent.mkdir(exist_ok=True)
    (adopted / WANTS).symlink_to("/somewhere/else")
    for word in ("give-back", "take"):
        adopted_units(adopted, word)
        assert (adopted / WANTS).readlink() == Path("/somewhere/else")


def test_a_purge_removes_the_drop_ins_wherever_they_may_lie() -> None:
    for text in ((TOP / "debian/bandog.postrm").read_text(), (TOP / "packaging/adopted-units").read_text()):
        for name in NAMES:
            assert f"*.service.d/{name}" in text and f"*.container.d/{name}" in text


def test_models_do_not_hold_up_the_boot_and_start_without_bandog() -> None:
    unit = (TOP / "packaging/systemd/bandog-services.service").read_text().splitlines()
    for line in (
        "DefaultDependencies=no",
        "Type=oneshot",
        "RemainAfterExit=yes",
        "OnFailure=bandog-services-plain.service",
        "KillMode=process",
    ):
        assert line in unit
    plain = (TOP / "packaging/systemd/bandog-services-plain.service").read_text()
    assert "ExecStart=/usr/lib/bandog/adopted-units start" in plain
    assert "bin/bandog" not in plain


def test_debian_packages_are_named_in_one_place() -> None:
    """Sections answer, an unknown one is an error that names it."""
    need = TOP / "packaging/need"
    listed = subprocess.run([str(need), "--list", "setup"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "python3-venv" in listed.split()
    wrong = subprocess.run([str(need), "--list", "nonsense"], stderr=subprocess.PIPE, text=True, check=False)
    assert wrong.returncode == 2
    assert "[nonsense]" in wrong.stderr
