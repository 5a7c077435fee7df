"""Each call of the fake driver, through the real binding, tells what stands in the state file."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from nvml_driver import Driver

from fakenvml import CALLS, GIB, SONAME

NONE = {"error": 3}
COUNTERS = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")
THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")
# Everything of the second card differs from the preset.
OTHER: dict[str, Any] = {
    "uuid": "GPU-ffffffff-1111-2222-3333-444444444444",
    "serial": "9999999999999",
    "name": "NVIDIA A100-SXM4-80GB",
    "part_number": "692-2G506-0200-003",
    "vbios": "92.00.45.00.03",
    "minor": 7,
    "brand": 2,
    "architecture": 7,
    "numa": 1,
    "pci": "0001:c1:00.0",
    "pci_device_id": 0x20B210DE,
    "pci_subsystem_id": 0x147F10DE,
    "memory": {"total": 40 * GIB, "used": GIB, "reserved": 5 * GIB},
    "util": 97,
    "util_memory": 44,
    "power": 401_250,
    "power_limit": 400_000,
    "power_limit_set": 450_000,
    "temperature": 83,
    "memory_temperature": 91,
    "thresholds": {"shutdown": 92, "slowdown": 89, "memory_max": 96, "gpu_max": 85},
    "clock": 1410,
    "clock_max": 1411,
    "memory_clock": 1593,
    "memory_clock_max": 1594,
    "throttle": 0x48,
    "ecc": {
        "mode": 1,
        "mode_pending": 0,
        "corrected": 11,
        "corrected_aggregate": 22,
        "uncorrected": 33,
        "uncorrected_aggregate": 5_000_000_000,
        "sram": {"corrected": 1, "corrected_aggregate": 2, "uncorrected": 3, "uncorrected_aggregate": 4},
    },
    "rows": {"correctable": 2, "uncorrectable": 1, "pending": True, "failed": True, "histogram": [6, 5, 4, 3, 2]},
    "retired": {
        "pending": True,
        "single": [{"address": 0x1000, "time": 1_700_000_000}],
        "double": [{"address": 0x2000, "time": 1}, {"address": 0xFFFFFFFFFF, "time": 2}],
    },
    "pcie": {"generation": 1, "generation_max": 4, "width": 8, "width_max": 16, "replays": 17},
    "links": [True, False, True],
    "nvlink": {
        "version": 4,
        "remote": ["0000:c4:00.0", "0000:c5:00.0"],
        "errors": {"0": {"crc_flit": 9}, "1": dict(zip(COUNTERS, (1, 2, 3, 4, 5), strict=True))},
    },
    "fabric": {
        "state": 2,
        "status": 27,
        "clique": 5,
        "cluster": "00112233-4455-6677-8899-aabbccddeeff",
        "health": 0x15,
        "health_summary": 2,
    },
    "island": 3,
    "recovery": 4,
    "persistence": False,
    "mig": True,
    "mig_pending": False,
    "compute_mode": 3,
    "processes": [
        {"pid": 11, "memory": 2 * GIB},
        {"pid": 12, "memory": 3},
        {"pid": 13},
        {"pid": 14, "memory": 5, "graphics": True},
    ],
}
ANOTHER = {
    "driver": "580.65.06",
    "library": "580.65.06",
    "cuda": 13000,
    **{f"gpus.1.{key}": value for key, value in OTHER.items()},
}


def pci(address: str, device: int = 0, subsystem: int = 0) -> dict[str, Any]:
    domain, bus, slot = (int(part, 16) for part in address.removesuffix(".0").split(":"))
    return {
        "busIdLegacy": f"{domain:04X}:{bus:02X}:{slot:02X}.0",
        "domain": domain,
        "bus": bus,
        "device": slot,
        "pciDeviceId": device,
        "pciSubSystemId": subsystem,
        "busId": f"{domain:08X}:{bus:02X}:{slot:02X}.0",
    }


def expected(one: dict[str, Any], index: int, first: dict[str, Any]) -> dict[str, Any]:
    """What the calls tell of a GPU with this state; `first` is the GPU that it is paired with."""
    ecc, pcie, rows, links = one["ecc"], one["pcie"], one["rows"], one["links"]
    return {
        "UUID": one["uuid"],
        "Serial": one["serial"],
        "Name": one["name"],
        "BoardPartNumber": one["part_number"],
        "VbiosVersion": one["vbios"],
        "MinorNumber": one["minor"],
        "Index": index,
        "Brand": one["brand"],
        "Architecture": one["architecture"],
        "NumaNodeId": one["numa"],
        "PciInfo": pci(one["pci"], one.get("pci_device_id", 0x233010DE), one.get("pci_subsystem_id", 0x16C110DE)),
        "UtilizationRates": {"gpu": one["util"], "memory": one.get("util_memory", 0)},
        "PowerUsage": one["power"],
        "EnforcedPowerLimit": one["power_limit"],
        "PowerManagementLimit": one.get("power_limit_set", one["power_limit"]),
        "Temperature": one["temperature"],
        "TemperatureV": one["temperature"],
        **{f"TemperatureThreshold {kind}": one["thresholds"][name] for kind, name in enumerate(THRESHOLDS)},
        **{f"ClockInfo {kind}": one["memory_clock" if kind == 2 else "clock"] for kind in range(4)},
        **{f"MaxClockInfo {kind}": one["memory_clock_max" if kind == 2 else "clock_max"] for kind in range(4)},
        "CurrentClocksEventReasons": one["throttle"],
        "CurrentClocksThrottleReasons": one["throttle"],
        "PersistenceMode": int(one["persistence"]),
        "MigMode": [int(one["mig"]), int(one.get("mig_pending", one["mig"]))],
        "ComputeMode": one["compute_mode"],
        "EccMode": [ecc["mode"], ecc.get("mode_pending", ecc["mode"])],
        **of_ecc(ecc),
        "RemappedRows": [rows["correctable"], rows["uncorrectable"], int(rows["pending"]), int(rows["failed"])],
        "RowRemapperHistogram": dict(zip(("max", "high", "partial", "low", "none"), rows["histogram"], strict=True)),
        **of_retired(one.get("retired")),
        "CurrPcieLinkGeneration": pcie["generation"],
        "MaxPcieLinkGeneration": pcie["generation_max"],
        "CurrPcieLinkWidth": pcie["width"],
        "MaxPcieLinkWidth": pcie["width_max"],
        "PcieReplayCounter": pcie["replays"],
        **{f"NvLinkState {link}": int(links[link]) if link < len(links) else NONE for link in range(4)},
        **of_nvlink(one["nvlink"]),
        "P2PStatus": 0 if one["island"] == first["island"] else 5,
        "TopologyCommonAncestor": 40 if one["numa"] == first["numa"] else 50,
        **of_fabric(one["fabric"]),
        **of_memory(one),
        "FieldValues": of_fields(one),
    }


def of_ecc(ecc: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"L2": NONE}
    for error, kind in enumerate(("corrected", "uncorrected")):
        for counter, life in enumerate(("", "_aggregate")):
            total, sram = ecc[kind + life], ecc.get("sram", {}).get(kind + life, 0)
            told[f"TotalEccErrors {error, counter}"] = total
            told[f"Dram {error, counter}"] = total - sram
            told[f"Sram {error, counter}"] = sram
    return told


def of_retired(retired: dict[str, Any] | None) -> dict[str, Any]:
    if retired is None:
        names = ("RetiredPages 0", "RetiredPages 1", "RetiredPages_v2 0", "RetiredPages_v2 1")
        return dict.fromkeys(("RetiredPagesPendingStatus", *names), NONE)
    told: dict[str, Any] = {"RetiredPagesPendingStatus": int(retired["pending"])}
    for cause, key in enumerate(("single", "double")):
        told[f"RetiredPages {cause}"] = [one["address"] for one in retired[key]]
        told[f"RetiredPages_v2 {cause}"] = [
            {"address": one["address"], "timestamp": one["time"]} for one in retired[key]
        ]
    return told


def of_nvlink(nvlink: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for link in range(2):
        told[f"NvLinkVersion {link}"] = nvlink["version"]
        told[f"NvLinkRemotePciInfo {link}"] = pci(nvlink["remote"][link])
        for counter, name in enumerate(COUNTERS):
            told[f"NvLinkErrorCounter {link} {counter}"] = nvlink["errors"].get(str(link), {}).get(name, 0)
    return told


def of_fabric(fabric: dict[str, Any]) -> dict[str, Any]:
    first = {
        "clusterUuid": fabric["cluster"].replace("-", "") or "0" * 32,
        "status": fabric["status"],
        "cliqueId": fabric["clique"],
        "state": fabric["state"],
    }
    second = {"version": 0x02000024, **first, "healthMask": fabric["health"]}
    third = {**second, "version": 0x03000028, "healthSummary": fabric["health_summary"]}
    return {"GpuFabricInfo": first, "GpuFabricInfoV 2": second, "GpuFabricInfoV 3": third}


def of_memory(one: dict[str, Any]) -> dict[str, Any]:
    total, reserved = one["memory"]["total"], one["memory"].get("reserved", 0)
    used = one["memory"]["used"] + sum(held.get("memory", 0) for held in one["processes"])
    free = total - reserved - used
    holders = [[[held["pid"], held.get("memory")], held.get("graphics", False)] for held in one["processes"]]
    return {
        "MemoryInfo": {"total": total, "free": free, "used": used + reserved},
        "MemoryInfo_v2": {"version": 0x02000028, "total": total, "reserved": reserved, "free": free, "used": used},
        "ComputeRunningProcesses": [held for held, graphics in holders if not graphics],
        "GraphicsRunningProcesses": [held for held, graphics in holders if graphics],
    }


def of_fields(one: dict[str, Any]) -> list[Any]:
    ecc, rows, errors = one["ecc"], one["rows"], one["nvlink"]["errors"]
    totals = [ecc[kind + life] for life in ("", "_aggregate") for kind in ("corrected", "uncorrected")]
    srams = [
        ecc.get("sram", {}).get(kind + life, 0) for life in ("", "_aggregate") for kind in ("corrected", "uncorrected")
    ]

    def on(link: int, name: str) -> int:
        return int(errors.get(str(link), {}).get(name, 0))

    def in_all(name: str) -> int:
        return sum(on(link, name) for link in range(18))

    seventh = 0 if len(one["links"]) > 6 else NONE
    return [
        *(ecc["mode"], ecc.get("mode_pending", ecc["mode"]), *totals),
        *(total - sram for total, sram in zip(totals, srams, strict=True)),
        *(in_all(name) for name in ("crc_flit", "crc_data", "replay", "recovery")),
        *(one["memory_temperature"], len(one["links"]), one["pcie"]["replays"]),
        *(rows["correctable"], rows["uncorrectable"], int(rows["pending"]), int(rows["failed"])),
        *(in_all("ecc_data"), one["nvlink"]["version"], one["power"], one["power"], one["recovery"]),
        *(on(0, name) for name in ("crc_flit", "crc_data", "replay", "recovery")),
        *(seventh, on(0, "ecc_data")),
        *(on(1, "replay"), on(1, "recovery"), on(1, "crc_flit") + on(1, "crc_data")),
        *(int(one["links"][1]), int(one["links"][0])),
    ]


@pytest.mark.parametrize("changes", [{}, ANOTHER], ids=["preset", "another"])
def test_each_call_tells_what_stands_in_the_state(driver: Driver, changes: dict[str, Any]) -> None:
    driver.state.change(changes)
    there, told = driver.state.read(), driver.read()
    assert told["init"] is None
    version = f"{there['cuda'] // 1000}.{there['library']}"
    assert told["system"] == [there["driver"], version, there["cuda"], there["cuda"]]
    assert told["count"] == 4
    for index, one in enumerate(there["gpus"]):
        assert told["gpus"][index] == expected(one, index, there["gpus"][0])
    assert told["again"] == [[index] * 3 for index in range(4)]
    assert told["nobody"] == [{"error": 6}] * 3 + [{"error": 2}] * 2
    assert told["shutdown"] is None


def test_the_two_states_differ_in_every_value(driver: Driver) -> None:
    """Else a call that always tells the same would pass."""
    preset = driver.state.read()["gpus"][1]
    one, other = expected(preset, 1, preset), expected({**preset, **OTHER}, 1, preset)
    # Fixed by the hardware, or by where the card stands.
    same = {"Index", "L2", "NvLinkState 0", "NvLinkState 2", "MaxPcieLinkWidth"}
    same |= {f"NvLinkErrorCounter 0 {counter}" for counter in (0, 1, 3, 4)}
    assert {name for name in one if one[name] == other[name]} == same


def test_every_function_of_the_library_is_read_by_these_tests(driver: Driver) -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", driver.library / SONAME], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.split()[2::3]
    assert set(driver.read()["called"]) == CALLS
    assert set(symbols) == CALLS | {"nvmlErrorString", "nvmlInit", "nvmlInit_v2"}


def test_what_the_state_leaves_out_is_not_supported(driver: Driver) -> None:
    gone = ("ecc", "rows", "recovery", "nvlink", "fabric", "numa", "thresholds", "throttle", "memory_temperature")
    driver.state.change({**{f"gpus.0.{key}": None for key in gone}, "gpus.0.links": [], "gpus.0.pcie": {}})
    told = driver.read()["gpus"][0]
    well = ("UUID", "Name", "Temperature", "MemoryInfo", "PowerUsage")
    assert all(told[name] != NONE for name in well)
    prefixes = ("Ecc", "TotalEcc", "Dram", "Sram", "Remapped", "RowRemapper", "NvLink", "GpuFabric", "Numa")
    prefixes += ("TemperatureThreshold", "CurrentClocks", "CurrPcie", "MaxPcie", "PcieReplay", "RetiredPages")
    assert {str(told[name]) for name in told if name.startswith(prefixes)} == {str(NONE)}
    # What is left is the number of links, and the power twice.
    assert [value for value in told["FieldValues"] if value != NONE] == [0, 70_000, 70_000]


def test_without_ecc_there_are_no_counters(driver: Driver) -> None:
    driver.state.set("gpus.0.ecc.mode", 0)
    told = driver.read()["gpus"][0]
    assert told["EccMode"] == [0, 0]
    assert [told[f"TotalEccErrors {one}"] for one in ((0, 0), (0, 1), (1, 0), (1, 1))] == [NONE] * 4


def test_two_gpus_below_one_switch_are_nearest(driver: Driver) -> None:
    driver.state.change({"gpus.0.pcie.switch": 1, "gpus.3.pcie.switch": 1})
    told = driver.read()["gpus"]
    assert [one["TopologyCommonAncestor"] for one in told[1:]] == [40, 50, 10]
