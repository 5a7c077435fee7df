"""`bandog doctor gpu` says whether the driver can be asked for the GPUs, with the exact fix."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bandog.host.checkup import Check
from bandog.host.checkup_gpu import gpu
from bandog.host.paths import Paths


class Host:
    """A host's trees below a folder."""

    def __init__(self, root: Path) -> None:
        self.paths = Paths(root=root)

    def card(self, address: str = "0000:e5:00.0", vendor: str = "0x10de", kind: str = "0x030200") -> None:
        for name, text in (("vendor", vendor), ("class", kind)):
            self.write(f"/sys/bus/pci/devices/{address}/{name}", text + "\n")

    def driver(self, version: str, library: str | None) -> None:
        self.write("/sys/module/nvidia/version", version + "\n")
        if library is not None:
            self.library(library)

    def library(self, version: str) -> None:
        link = self.write(f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}", "").with_name("libnvidia-ml.so.1")
        link.symlink_to(f"libnvidia-ml.so.{version}")

    def smi(self, script: str) -> None:
        self.write("/usr/bin/nvidia-smi", f"#!/bin/sh\n{script}\n").chmod(0o755)

    def write(self, path: str, text: str) -> Path:
        place = self.paths.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def checks(self) -> dict[str, Check]:
        return {one.name: one for one in gpu(self.paths)}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_without_gpus_is_neither_well_nor_ill(host: Host) -> None:
    host.card(vendor="0x8086")
    host.card("0000:e5:00.1", kind="0x040300")
    assert {name: one.state for name, one in host.checks().items()} == {"driver": "unknown"}


def test_gpus_without_a_driver_are_not_watched(host: Host) -> None:
    host.card()
    check = host.checks()["driver"]
    assert (check.state, check.what) == ("bad", "no NVIDIA driver: 1 NVIDIA GPUs on the PCI bus are not watched")
    assert check.fix


def test_a_driver_that_is_installed_and_not_loaded_is_bad(host: Host) -> None:
    host.library("570.86.15")
    assert host.checks()["driver"].fix.startswith("modprobe nvidia")


def test_a_driver_that_fits_and_is_kept_loaded_is_well(host: Host) -> None:
    host.driver("570.86.15", "570.86.15")
    host.smi("printf 'Enabled\\nEnabled\\n'")
    assert {name: one.state for name, one in host.checks().items()} == dict.fromkeys(
        ("driver", "library", "persistence"), "ok"
    )


def test_a_library_of_another_version_is_bad(host: Host) -> None:
    host.driver("550.54.15", "550.90.07")
    check = host.checks()["library"]
    assert check.state == "bad"
    assert "550.54.15" in check.what
    assert "550.90.07" in check.what
    assert check.fix.startswith("reboot")


@pytest.mark.parametrize("library", [None, "1"])
def test_a_version_that_cannot_be_told_is_said_to_be_unknown(host: Host, library: str | None) -> None:
    host.driver("550.54.15", None)
    if library:
        host.write("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "")
    assert host.checks()["library"].state == "unknown"


def test_persistence_mode_that_is_off_costs_looks_and_has_its_fix(host: Host) -> None:
    host.driver("570.86.15", "570.86.15")
    host.smi("printf 'Enabled\\nDisabled\\n'")
    check = host.checks()["persistence"]
    assert check.state == "warn"
    assert check.what.startswith("persistence mode is off on 1 of 2 GPUs")
    assert "nvidia-persistenced" in check.fix
    assert "nvidia-smi -pm 1" in check.fix


@pytest.mark.parametrize("script", ["echo 'No devices were found'; exit 6", "true", None])
def test_where_nvidia_smi_tells_nothing_persistence_is_unknown(host: Host, script: str | None) -> None:
    host.driver("570.86.15", "570.86.15")
    if script is not None:
        host.smi(script)
    assert host.checks()["persistence"].state == "unknown"


def test_an_nvidia_smi_that_hangs_is_a_driver_that_hangs(host: Host) -> None:
    host.driver("570.86.15", "570.86.15")
    host.smi("exec sleep 600")
    *_, check = gpu(host.paths, patience=timedelta(milliseconds=300))
    assert (check.name, check.state) == ("persistence", "bad")
    assert "the driver hangs" in check.what
