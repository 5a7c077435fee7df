"""The shipped policies: valid, and each finding that we know of is taken by the policy meant for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bandog import Finding, Instant, Record, Severity
from bandog.config import PluginCatalogue, load
from bandog.domain.policy import Policy, first_match
from bandog.host.paths import Paths
from bandog_plugins.detectors.xid import XidDetector

TOP = Path(__file__).parents[3]
NOW = Instant(boot_id="b", boottime=timedelta(hours=1), utc=datetime(2026, 8, 1, tzinfo=UTC))
CATALOG: dict[str, Any] = yaml.load(
    (TOP / "plugins/bandog_plugins/data/xid_catalog.yaml").read_text(),
    Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader,
)
CLASSES = {
    "none": "xid-none",
    "notify": "xid-notify",
    "follow_primary": "xid-undecided",
    "decode_message": "xid-undecided",
    "restart_app": "xid-restart-app",
    "restart_vm": "xid-restart-vm",
    "reset_gpu": "xid-reset-gpu",
    "reset_fabric": "xid-reset-fabric",
    "reboot": "xid-reboot",
    "cold_reboot": "xid-reboot",
    "inspect_hardware": "xid-inspect-hardware",
    "update_driver": "xid-update-driver",
    "contact_support": "xid-contact-support",
    "rma": "xid-inspect-hardware",
}
OWN = {
    13: "xid-13-exception",
    31: "xid-31-page-fault",
    43: "xid-43-channel-reset",
    45: "xid-45-follower",
    48: "xid-48-double-bit-error",
    62: "xid-62-micro-controller-halt",
    63: "xid-63-row-remapped",
    64: "xid-64-remap-failed",
    74: "xid-74-nvlink",
    79: "xid-79-off-the-bus",
    94: "xid-94-contained-ecc",
    95: "xid-95-uncontained-ecc",
    119: "xid-119-gsp",
    120: "xid-119-gsp",
    **dict.fromkeys(range(144, 151), "xid-144-nvlink5"),
    154: "xid-154-other",
    175: "xid-119-gsp",
}
ACTS = {"xid-31-page-fault", "xid-94-contained-ecc", "xid-restart-app", "xid-restart-vm", "task-hung"}


@pytest.fixture(scope="module")
def policies(catalogue: PluginCatalogue, tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, ...]:
    """The shipped policies as they are read on a host whose main file names oncall."""
    etc = tmp_path_factory.mktemp("etc")
    (etc / "bandog.yaml").write_text('notify: {oncall: {urls: "file:/etc/bandog/oncall"}}\n')
    loaded = load(Paths(), plugins=catalogue, config_dir=etc, policies_dir=TOP / "policies", environ={})
    assert [str(one) for one in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config.policies


def state(text: str) -> Finding:
    """Return the finding that the detector makes of one kernel line."""
    (finding,) = XidDetector().feed(Record(text=text, at=NOW, source="test"))
    return finding


def xid(code: int, message: str = "") -> Finding:
    return state(f"NVRM: Xid (PCI:0000:e5:00): {code}, pid=4711, name=python3, {message}")


def policy_of(policies: tuple[Policy, ...], finding: Finding) -> str:
    policy = first_match(policies, finding)
    assert policy is not None
    return policy.name


def test_every_action_of_the_catalogue_has_its_policy(policies: tuple[Policy, ...]) -> None:
    assert set(CLASSES) == set(CATALOG["vocabulary"]["action"])
    for action, name in CLASSES.items():
        facts = {"xid": 9999, "action": action, "class": "memory"}
        finding = Finding(kind="nvidia.xid", subject="gpu:0000:e5:00.0", severity=Severity.ERROR, at=NOW, facts=facts)
        taking = [one.name for one in policies if one.match.takes(finding)]
        assert taking == [name, "xid-unknown"], action


@pytest.mark.parametrize("entry", CATALOG["xids"], ids=lambda entry: str(entry["code"]))
def test_every_xid_is_taken_by_the_one_policy_meant_for_it(policies: tuple[Policy, ...], entry: dict[str, Any]) -> None:
    finding = xid(entry["code"])
    wanted = OWN.get(entry["code"], CLASSES[str(finding.facts["action"])])
    taking = [one.name for one in policies if one.match.takes(finding)]
    assert taking[0] == wanted
    assert len([name for name in taking if name in OWN.values()]) == (entry["code"] in OWN)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("NVRM: Xid (PCI:0000:e5:00): 94, pid=1, name=x, Contained: SM (0x1). RST: No, D-RST: No", OWN[94]),
        ("NVRM: Xid (PCI:0000:e5:00): 94, pid=1, name=x, Contained: PMU (0x1). RST: Yes, D-RST: No", "xid-reset-gpu"),
        ("NVRM: Xid (PCI:0000:e5:00): 95, pid=1, name=x, Uncontained: LTC GPC. RST: No, D-RST: No", "xid-restart-app"),
        ("NVRM: Xid (PCI:0000:e5:00): 95, pid=1, name=x, Uncontained: FBHUB. RST: Yes, D-RST: No", OWN[95]),
        (
            "NVRM: Xid (PCI:0000:e5:00): 64, Row Remapper: (0x0000000000000001) - Attempting to remap a row that is "
            "already pending remapping.",
            "xid-64-remap-pending",
        ),
        ("NVRM: Xid (PCI:0000:e5:00): 64, Row Remapper Error: (0x01) - table is full", OWN[64]),
        *(
            (f"NVRM: Xid (PCI:0000:e5:00): 154, GPU recovery action changed from 0x9 (x) to 0x{value:x} (y)", name)
            for value, name in enumerate(
                ["xid-154-recovered", "xid-154-reset", "xid-154-reboot", "xid-154-other", "xid-154-drain",
                 "xid-154-other", "xid-154-reset", "xid-154-reboot", "xid-154-other"]
            )
        ),
        ("NVRM: Xid (PCI:0000:e5:00): 181, something new", "xid-unknown"),
        ("NVRM: Xid (PCI:0000:e5:00): 999", "xid-unknown"),
        ("NVRM: GPU 0000:e5:00.0: GPU has fallen off the bus.", "gpu-lost"),
        ("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
         "gpu-driver-fault"),
    ],
)  # fmt: skip
def test_the_message_decides_where_the_code_does_not(policies: tuple[Policy, ...], line: str, name: str) -> None:
    assert policy_of(policies, state(line)) == name


@pytest.mark.parametrize("action", sorted({entry["action"] for entry in CATALOG["sxids"]} | {"notify"}))
def test_every_sxid_action_has_its_policy(policies: tuple[Policy, ...], action: str) -> None:
    finding = Finding(
        kind="nvidia.sxid", subject="nvswitch:0000:07:00.0", severity=Severity.ERROR, at=NOW,
        facts={"sxid": 1, "action": action},
    )  # fmt: skip
    wanted = {
        "none": "sxid-none",
        "reset_gpu": "sxid-reset",
        "reset_fabric": "sxid-reset",
        "inspect_hardware": "sxid-inspect",
        "contact_support": "sxid-inspect",
    }
    assert policy_of(policies, finding) == wanted.get(action, "sxid-other")


def test_every_kind_that_can_be_stated_is_taken(policies: tuple[Policy, ...], catalogue: PluginCatalogue) -> None:
    for kind in catalogue.kinds:
        finding = Finding(kind=kind, subject="x", severity=Severity.INFO, at=NOW)
        assert first_match(policies, finding) is not None, kind


def test_only_what_costs_a_program_its_context_or_hangs_it_restarts_a_service(
    policies: tuple[Policy, ...],
) -> None:
    """Effects (45, 43), application errors of one program's making (13) and broken GPUs restart nothing."""
    assert {one.name for one in policies if any(step.do == "restart" for step in one.steps)} == ACTS


WITHOUT_THE_CARD = {
    "xid-48-double-bit-error",
    "xid-62-micro-controller-halt",
    "xid-64-remap-failed",
    "xid-74-nvlink",
    "xid-79-off-the-bus",
    "xid-94-contained-ecc",
    "xid-95-uncontained-ecc",
    "xid-119-gsp",
    "xid-154-reset",
    "xid-reset-gpu",
    "gpu-lost",
    "gpu-missing",
    "gpu-recovery-reset",
    "gpu-row-remap-failed",
}


def test_only_what_makes_a_card_unfit_keeps_it_out(policies: tuple[Policy, ...]) -> None:
    """Errors of a program (13, 31, 43, 45), of the fabric, counters and clocks blame no card."""
    found = {one.name: [step for step in one.steps if step.do == "relaunch"] for one in policies}
    assert {name for name, steps in found.items() if steps} == WITHOUT_THE_CARD
    assert all(dict(step.with_) == {"without": "$subject"} for steps in found.values() for step in steps)


def test_a_contained_error_costs_a_restart_first_and_the_card_second(policies: tuple[Policy, ...]) -> None:
    policy = next(one for one in policies if one.name == "xid-94-contained-ecc")
    assert [step.do for step in policy.steps] == ["evidence", "restart", "relaunch", "notify"]
    assert policy.quiet == timedelta(hours=24)


def test_a_lost_card_is_left_out_at_once(policies: tuple[Policy, ...]) -> None:
    policy = next(one for one in policies if one.name == "xid-79-off-the-bus")
    assert [step.do for step in policy.steps] == ["evidence", "relaunch", "notify"]


def test_a_row_that_waits_for_a_reset_gets_it_in_the_window_or_not_at_all(policies: tuple[Policy, ...]) -> None:
    planned = {one.name for one in policies for step in one.steps if step.do == "reset-gpu" and step.with_.get("when")}
    assert planned == {
        "xid-63-row-remapped",
        "xid-64-remap-pending",
        "xid-154-drain",
        "gpu-recovery-drain",
        "gpu-row-remap-pending",
    }


@pytest.mark.parametrize(
    ("kind", "facts", "name"),
    [
        ("gpu.lost", {"reason": "gpu-is-lost"}, "gpu-lost"),
        ("gpu.missing", {}, "gpu-missing"),
        ("gpu.recovery-needed", {"recovery": "reset"}, "gpu-recovery-reset"),
        ("gpu.recovery-needed", {"recovery": "drain-and-reset"}, "gpu-recovery-drain"),
        ("gpu.recovery-needed", {"recovery": "reboot"}, "gpu-recovery-reboot"),
        ("gpu.recovery-needed", {"recovery": "drain-p2p"}, "gpu-other"),
        ("gpu.recovery-needed", {"recovery": "action-6"}, "gpu-other"),
        ("gpu.row-remap-failed", {}, "gpu-row-remap-failed"),
        ("gpu.row-remap-pending", {}, "gpu-row-remap-pending"),
        ("gpu.ecc-uncorrected", {}, "gpu-ecc-uncorrected"),
        ("gpu.throttled", {}, "gpu-throttled"),
        ("gpu.link-degraded", {}, "gpu-link-degraded"),
        ("gpu.driver-hung", {}, "gpu-driver-hung"),
        ("gpu.driver-mismatch", {}, "gpu-driver-mismatch"),
        ("gpu.driver-fault", {}, "gpu-driver-fault"),
    ],
)
def test_every_finding_of_the_probe_has_its_policy(
    policies: tuple[Policy, ...], kind: str, facts: dict[str, str], name: str
) -> None:
    finding = Finding(kind=kind, subject="gpu:0000:e5:00.0", severity=Severity.ERROR, at=NOW, facts=facts)
    assert policy_of(policies, finding) == name


def test_no_shipped_policy_reaches_a_disruptive_step_before_evidence(
    policies: tuple[Policy, ...], catalogue: PluginCatalogue
) -> None:
    for policy in policies:
        # What is planned for a window destroys no trace of the fault: the evidence is days old by then.
        actions = [step.do for step in policy.steps if step.with_.get("when") != "window"]
        if any(catalogue.actions[name].traits.disruptive for name in actions):
            assert actions[0] == "evidence", policy.name


def test_a_hung_task_is_told_at_once_and_acted_on_after_ten_minutes(policies: tuple[Policy, ...]) -> None:
    policy = next(one for one in policies if one.name == "task-hung")
    assert policy.notify == ("oncall",) and policy.resolve == "cleared"
    assert [(step.do, step.after) for step in policy.steps[:2]] == [
        ("evidence", None),
        ("restart", timedelta(minutes=10)),
    ]


def test_no_shipped_policy_loosens_the_mode(policies: tuple[Policy, ...]) -> None:
    assert {one.mode for one in policies} == {None}


def test_each_file_is_named_for_its_policy_and_tells_a_sleepy_operator_what_to_do(
    policies: tuple[Policy, ...],
) -> None:
    for policy in policies:
        file = Path(policy.file)
        number, _, name = file.stem.partition("-")
        assert number.isdigit() and len(number) == 3  # by name is by number only if all are as long
        assert name == policy.name and policy.description
        text = file.read_text()
        for head in ("# What happened: ", "# What bandog does: ", "# What you can do: ", "# To hear less: "):
            assert head in text, f"{file}: {head}"


def test_folklore_stays_out_of_the_texts() -> None:
    texts = {one.name: " ".join(one.read_text().split()) for one in (TOP / "policies").glob("*.yaml")}
    halt = texts["122-xid-62-micro-controller-halt.yaml"]
    assert "internal micro-controller" in halt and "description: An internal micro-controller" in halt
    assert "fallen off the bus" in texts["132-xid-79-off-the-bus.yaml"]
    assert "contained ECC error" in texts["134-xid-94-contained-ecc.yaml"]
    assert "uncontained" not in texts["134-xid-94-contained-ecc.yaml"].lower()
