"""Every call that the child makes, through the real binding, against what the state file says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from gpu_bench import Bench

import fakenvml
from bandog import GpuLook, Holder
from bandog_plugins.gpu.library import Library

GIB = 1 << 30
FAILURES: dict[str, dict[str, Any]] = {
    "nvmlDeviceGetUUID": {"uuid": ""},
    "nvmlDeviceGetName": {"name": ""},
    "nvmlDeviceGetSerial": {"serial": ""},
    "nvmlDeviceGetBoardPartNumber": {"part_number": ""},
    "nvmlDeviceGetVbiosVersion": {"vbios": ""},
    "nvmlDeviceGetMinorNumber": {"minor": None},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max": None},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max": None},
    "nvmlDeviceGetFieldValues": {"recovery": None},
    "nvmlDeviceGetUtilizationRates": {"util": None},
    "nvmlDeviceGetPowerUsage": {"power": None},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit": None},
    "nvmlDeviceGetTemperature": {"temperature": None},
    "nvmlDeviceGetClockInfo": {"sm_clock": None},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle": ()},
    "nvmlDeviceGetTotalEccErrors": {"ecc_corrected": None, "ecc_uncorrected": None},
    "nvmlDeviceGetRemappedRows": {"remapped": None, "remap_pending": None, "remap_failed": None},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation": None},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width": None},
    "nvmlDeviceGetPersistenceMode": {"persistence": None},
    "nvmlDeviceGetMigMode": {"mig": None},
    "nvmlDeviceGetMemoryInfo": {"memory_total": None, "memory_used": None},
    "nvmlDeviceGetComputeRunningProcesses": {"holders": None},
    "nvmlDeviceGetNvLinkState": {"links": ()},
}
OTHER = {
    "util": 97,
    "power": 512_340,
    "power_limit": 650_000,
    "temperature": 91,
    "clock": 1200,
    "throttle": 0x8 | 0x40 | 0x4,
    "ecc": {"mode": 1, "corrected": 7, "uncorrected": 2, "corrected_aggregate": 70, "uncorrected_aggregate": 20},
    "rows": {"correctable": 3, "uncorrectable": 4, "pending": True, "failed": True, "histogram": [1, 1, 1, 1, 1]},
    "pcie": {"generation": 4, "generation_max": 5, "width": 8, "width_max": 16},
    "links": [True, False, True],
    "recovery": 4,
    "persistence": False,
    "mig": True,
    "memory": {"total": 80 * GIB, "used": 3 * GIB},
    "processes": [{"pid": 4242, "memory": GIB}, {"pid": 4243}],
}


def expected(address: str, index: int, state: dict[str, Any]) -> GpuLook:
    """Return what a state of one GPU means, worked out by hand for the values used here."""
    rows, ecc, pcie, memory = state["rows"], state["ecc"], state["pcie"], state["memory"]
    other = state["throttle"] != 1
    return GpuLook(
        address=address,
        uuid=state["uuid"],
        serial=state["serial"],
        name=state["name"],
        part_number=state["part_number"],
        vbios=state["vbios"],
        index=index,
        minor=state["minor"],
        memory_total=memory["total"],
        memory_used=memory["used"] + (GIB if other else 0),
        util=state["util"],
        power=state["power"] / 1000,
        power_limit=state["power_limit"] / 1000,
        temperature=state["temperature"],
        sm_clock=state["clock"],
        throttle=("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown") if other else ("gpu_idle",),
        ecc_corrected=ecc["corrected"],
        ecc_uncorrected=ecc["uncorrected"],
        remap_pending=rows["pending"],
        remap_failed=rows["failed"],
        remapped=rows["correctable"] + rows["uncorrectable"],
        pcie_generation=pcie["generation"],
        pcie_generation_max=pcie["generation_max"],
        pcie_width=pcie["width"],
        pcie_width_max=pcie["width_max"],
        links=tuple(state["links"]),
        recovery="drain-and-reset" if other else "none",
        persistence=state["persistence"],
        mig=state["mig"],
        holders=(Holder(pid=4242, memory=GIB), Holder(pid=4243)) if other else (),
    )


@pytest.mark.parametrize("other", [False, True])
def test_each_value_is_that_of_the_state_file(bench: Bench, other: bool) -> None:
    if other:
        bench.change(**{f"gpus__1__{key}": value for key, value in OTHER.items()})
    bench.poll()
    look, state = bench.site.gpus.look(), bench.state.read()
    assert look is not None
    assert look.gpus == tuple(expected(bench.address(place), place, state["gpus"][place]) for place in range(4))
    assert (look.driver, look.library, look.cuda) == ("570.86.15", "570.86.15", "12.8")
    assert len(look.peers) == 6


def test_a_call_that_fails_leaves_its_value_out_and_is_named(bench: Bench) -> None:
    """Each call that the child makes of a GPU, one after the other."""
    well = bench.state.read()
    for call, gone in FAILURES.items():
        suffix = {"nvmlDeviceGetMemoryInfo": "_v2", "nvmlDeviceGetComputeRunningProcesses": "_v3"}.get(call, "")
        bench.state.write(well)
        # Another card each time, as identities are asked once.
        bench.change(**{f"gpus__2__errors__{call}{suffix}": 999, "gpus__2__uuid": f"GPU-{call}"})
        bench.poll()
        assert bench.look(2).errors == {call: "Unknown Error"}
        assert {key: getattr(bench.look(2), key) for key in gone} == gone
        assert bench.look(1).errors == {}


def test_what_a_card_cannot_do_is_no_value_but_no_nvlinks_is_an_answer(bench: Bench) -> None:
    bench.change(gpus__0__links=[], gpus__0__ecc={}, gpus__0__recovery=None)
    bench.poll()
    assert (bench.look().links, bench.look().ecc_uncorrected, bench.look().recovery) == ((), None, None)
    assert bench.look().errors == {
        "nvmlDeviceGetFieldValues": "Not Supported",
        "nvmlDeviceGetTotalEccErrors": "Not Supported",
    }


def test_the_recovery_action_is_told_by_its_number(bench: Bench) -> None:
    for number, word in [(1, "reset"), (2, "reboot"), (3, "drain-p2p"), (5, "action-5")]:
        bench.change(gpus__0__recovery=number)
        assert bench.poll().look().recovery == word


def test_what_never_changes_is_asked_once_for_each_card(bench: Bench) -> None:
    bench.poll()
    bench.change(gpus__0__name="another", gpus__0__util=55)
    bench.poll()
    assert (bench.look().name, bench.look().util) == ("NVIDIA H100 80GB HBM3", 55)
    bench.change(gpus__0__uuid="GPU-another-card")
    assert bench.poll().look().name == "another"


def test_a_holder_is_seen_for_as_long_as_it_lives(bench: Bench) -> None:
    bench.state.claims.mkdir()
    (bench.state.claims / str(os.getpid())).write_text(f"{bench.state.read()['gpus'][1]['uuid']} {GIB}\n")
    assert bench.poll().look(1).holders == (Holder(pid=os.getpid(), memory=GIB),)


def test_it_says_who_it_is_and_keeps_nothing_open_between_rounds(bench: Bench) -> None:
    bench.poll()
    pid = bench.child.pid
    assert Path(f"/proc/{pid}/comm").read_text() == "bandog-nvml\n"
    places = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    assert all(place.startswith("pipe:") for place in places)


def ask(environment: dict[str, str], *questions: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Run the child alone; return its answers and what it said on its standard error."""
    ended = subprocess.run(
        [sys.executable, "-I", "-m", "bandog_plugins.gpu.child"],
        input="".join(json.dumps(one) + "\n" for one in questions),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_without_a_driver_library_it_says_so() -> None:
    (answer,), _ = ask({}, {"round": 7, "at": []})
    assert (answer["round"], answer["error"], answer["code"]) == (7, "NVML Shared Library Not Found", 12)


def test_it_ends_with_its_input_and_needs_nothing_of_bandog(nvml: Path, tmp_path: Path) -> None:
    state = fakenvml.State(tmp_path / "state", 8)
    code = (
        "import runpy, sys\ntry: runpy.run_module('bandog_plugins.gpu.child', run_name='__main__', alter_sys=True)\n"
        "finally: print([one for one in sys.modules if one.split('.')[0] == 'bandog'], file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", code], input="", env=state.env(nvml), capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "[]\n")


def test_a_library_that_was_exchanged_is_loaded_anew_once_the_old_one_is_refused(nvml: Path, tmp_path: Path) -> None:
    """The driver was loaded anew with its library: the child becomes a fresh one, with its pipes and its question."""
    folder = tmp_path / "lib"
    folder.mkdir()
    link = folder / "libnvidia-ml.so.1"
    for version in ("570.86.15", "575.51.03"):
        (folder / f"libnvidia-ml.so.{version}").write_bytes((nvml / "libnvidia-ml.so.1").read_bytes())
    link.symlink_to("libnvidia-ml.so.570.86.15")
    bench = Bench(tmp_path, folder)
    try:
        assert bench.poll().raised("gpu.driver-mismatch") is None
        pid = bench.child.pid
        maps = Path(f"/proc/{pid}/maps")
        assert "libnvidia-ml.so.570.86.15" in maps.read_text()
        link.unlink()
        link.symlink_to("libnvidia-ml.so.575.51.03")
        # An unattended upgrade: what runs goes on with the old library, and that is told.
        assert bench.poll().raised("gpu.driver-mismatch") == {
            "driver": "570.86.15",
            "library": "575.51.03",
            "answers": True,
        }
        assert len(bench.site.gpus.usable()) == 4
        # Now the driver as well: the old library is refused.
        bench.change(driver="575.51.03")
        bench.poll()
        assert "libnvidia-ml.so.575.51.03" in maps.read_text()
        assert (bench.child.pid, bench.child.started) == (pid, 1)
        bench.change(library="575.51.03")
        bench.site.clock.advance(timedelta(minutes=1))
        assert bench.poll().answer == []
    finally:
        bench.site.close()


def test_a_library_without_a_version_in_its_name_has_none() -> None:
    library = Library()
    library.find()  # this process has loaded none
    assert (library.version(), library.is_old()) == ("", False)
