"""The `xid` detector, against recorded and constructed lines in every form of log."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bandog import Finding, Record, Severity, subjects
from bandog.sources.text import TextReader
from bandog.testing import FakeClock, FakeHost, feed, kernel_records
from bandog_plugins.detectors.xid import XidDetector

CORPUS = Path(__file__).parents[2] / "corpus"
OFF_BUS = "NVRM: GPU 0000:e5:00.0: GPU has fallen off the bus."
XID_79 = "NVRM: Xid (PCI:0000:e5:00): 79, GPU has fallen off the bus."


def read(log: str | bytes, detector: XidDetector | None = None) -> list[Finding]:
    """Return what the detector finds in a text log."""
    one = detector or XidDetector()
    found: list[Finding] = []
    reader = TextReader(
        needles=one.needles,
        feed=lambda record: found.extend(one.feed(record)),
        flush=lambda now: found.extend(one.flush(now)),
        is_open=lambda: one.open,
        today=datetime(2026, 11, 30, tzinfo=UTC),
    )
    reader.read(io.BytesIO(log if isinstance(log, bytes) else log.encode("utf-8", "surrogateescape")))
    reader.close()
    return found


def expectations() -> Iterator[Any]:
    """Yield (lines, what they give) of the corpus: `#=` begins a case, `#` is a remark."""
    for path in sorted((CORPUS / "xid").glob("*.log")):
        lines: list[str] = []
        expected: Any = None
        for number, line in enumerate([*path.read_text().splitlines(), "#= null"], start=1):
            if line.startswith("#="):
                if lines:
                    yield pytest.param("\n".join(lines), expected, id=f"{path.stem}:{number - len(lines)}")
                expected, lines = json.loads(line[2:]), []
            elif line and not line.startswith("# "):
                lines.append(line)


@pytest.mark.parametrize(("log", "expected"), list(expectations()))
def test_corpus(log: str, expected: dict[str, Any] | None) -> None:
    """Each case of the corpus gives its one finding with the named properties and facts, or none."""
    findings = read(log)
    if expected is None:
        assert findings == []
        return
    (finding,) = findings
    about = {
        "kind": finding.kind,
        "subject": finding.subject,
        "severity": finding.severity.value,
        "raised": finding.raised,
        "companion": finding.companion,
        "burst": finding.burst,
        "window": finding.window.total_seconds(),
    }
    got = {name: about.get(name, finding.facts.get(name)) for name in expected}
    assert got == expected
    assert all(isinstance(finding.facts[name], kind) for name, kind in XidDetector.emits[finding.kind].items()
               if name in finding.facts)  # fmt: skip
    assert set(finding.facts) <= set(XidDetector.emits[finding.kind])


def samples() -> list[dict[str, str]]:
    """The rows of the sample file; `-` means none."""
    with (CORPUS / "nvrm-samples.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def brief(finding: Finding) -> tuple[Any, ...]:
    """What makes a finding the same finding, its line aside."""
    return (finding.kind, finding.subject, finding.severity, finding.raised, dict(finding.facts))


def test_each_sample_gives_its_address_code_pid_and_name() -> None:
    """Rows with a number give that Xid, rows without give none."""
    for row in samples():
        xids = [one for one in read(row["line"]) if one.kind == "nvidia.xid"]
        if not row["xid"].isdigit():
            assert xids == [], row
            continue
        (finding,) = xids
        told = (finding.subject, finding.facts["xid"], finding.facts.get("pid"), finding.facts.get("process"))
        pid = None if row["pid"] == "-" else int(row["pid"])
        assert told == (
            subjects.gpu(row["pci"]),
            int(row["xid"]),
            pid,
            None if row["name"] == "-" else row["name"],
        ), row


def test_the_sample_file_as_one_log_gives_what_its_rows_give() -> None:
    """A line gives the same finding whatever stands around it, under its own line number."""
    rows = samples()
    alone = [(number, *brief(one)) for number, row in enumerate(rows, start=1) for one in read(row["line"])]
    whole = [(one.line, *brief(one)) for one in read("\n".join(row["line"] for row in rows))]
    assert whole == alone


def test_no_other_kernel_line_is_a_finding() -> None:
    """None of the hundreds of kernel lines about other hardware is taken for NVIDIA's."""
    for sample in yaml.safe_load((CORPUS / "kernel-samples.yaml").read_text())["samples"]:
        lines = sample.get("lines", []) + sample.get("raw", [])
        if "journal" in sample:
            lines.append(json.dumps(sample["journal"]))
        assert read("\n".join(lines)) == [], sample["id"]


def test_only_kernel_records_count() -> None:
    """A record of another facility gives nothing, whatever it says."""
    (record,) = kernel_records([XID_79])
    user = Record(text=record.text, at=record.at, source="kmsg", kernel=False, live=True)
    assert list(XidDetector().feed(user)) == []
    assert [one.live for one in XidDetector().feed(record)] == [True]


def test_off_bus_line_beside_79_joins_it() -> None:
    """79 and the line that the driver prints beside it are one event, whichever comes first."""
    for lines in ([XID_79, OFF_BUS], [OFF_BUS, XID_79]):
        assert [one.companion for one in feed(XidDetector(), lines)] == [False, True]


@pytest.mark.parametrize(
    "before",
    [
        "NVRM: Xid (PCI:0000:e5:00): 31, pid=1, name=x, Ch 00000001",  # harmless: the loss after it is a loss
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",  # another GPU
        "usb 1-2: NVRM: Xid (PCI:0000:e5:00): 79, GPU has fallen off the bus.",  # perhaps forged
    ],
)
def test_off_bus_line_alone_is_a_loss(before: str) -> None:
    """Only a real 79 or 110 of the same GPU makes the line without a code a companion."""
    assert feed(XidDetector(), [before, OFF_BUS])[-1].companion is False


def test_off_bus_line_long_after_79_is_a_loss_again() -> None:
    """What belongs together comes within 5 s."""
    detector, clock = XidDetector(), FakeClock()
    feed(detector, [XID_79], clock=clock)
    clock.advance(timedelta(seconds=6))
    (finding,) = feed(detector, [OFF_BUS], clock=clock)
    assert not finding.companion


def test_loss_carries_serial_and_uuid_from_earlier_lines() -> None:
    """What the driver said of a GPU before is known when it is lost."""
    findings = feed(
        XidDetector(),
        [
            "NVRM: GPU at PCI:0000:e5:00: GPU-91d3c0aa-10b2-0f4e-7a9c-55e0d1c2b3a4",
            "NVRM: GPU Board Serial Number: 1651923041187",
            OFF_BUS,
        ],
    )
    assert findings[0].facts["uuid"] == "GPU-91d3c0aa-10b2-0f4e-7a9c-55e0d1c2b3a4"
    assert findings[0].facts["serial"] == "1651923041187"


def test_forged_serial_is_not_believed() -> None:
    """A serial number inside somebody else's record changes nothing."""
    forged = "tmpfs: Unknown parameter 'NVRM: GPU 0000:e5:00.0: GPU serial number is 666.'"
    (finding,) = feed(XidDetector(), [forged, OFF_BUS])
    assert "serial" not in finding.facts


def test_memory_of_gpus_is_bounded() -> None:
    """A log that names thousands of addresses does not grow the detector."""
    detector = XidDetector()
    feed(detector, [f"NVRM: GPU {n:04x}:00:00.0: GPU has fallen off the bus." for n in range(1000)])
    assert len(detector._gpus) == 64


def test_recovery_to_none_clears_only_the_advice() -> None:
    """154 to 0x0 answers to the 154 before it and to no other Xid of the GPU."""
    advice, fault, recovered = feed(
        XidDetector(),
        [
            "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)",
            "NVRM: Xid (PCI:0000:18:00): 94, Contained: SM. RST: No, D-RST: No",
            "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
        ],
    )
    assert not recovered.raised
    assert recovered.key() == advice.key() != fault.key()


def test_number_means_what_it_meant_in_the_driver_of_the_log() -> None:
    """139 was the fast-path error in R535; the driver names its version when it loads."""
    line = "NVRM: Xid (PCI:0000:18:00): 139, pid=1, name=x, Ch 00000001"
    loading = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {}  Mon Jan  1 00:00:00 UTC 2024"
    (unknown,) = feed(XidDetector(), [line])
    (old,) = feed(XidDetector(), [loading.format("535.129.03"), line])
    (new,) = feed(XidDetector(), [loading.format("570.86.15"), line])
    assert unknown.facts["mnemonic"] == new.facts["mnemonic"] == "ROBUST_CHANNEL_OFA1_ERROR"
    assert old.facts["mnemonic"] == "ROBUST_CHANNEL_FAST_PATH_ERROR"


def test_log_record_code_of_an_old_switch_driver_is_nothing() -> None:
    """12034 was a log record in R515."""
    line = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 12034, Fatal, Link 16 x"
    loading = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  515.65.01  Release Build"
    (finding,) = feed(XidDetector(), [loading, line])
    assert (finding.severity, finding.facts["action"]) == (Severity.INFO, "none")


def test_version_is_read_from_the_host(tmp_path: Path) -> None:
    """A loaded driver tells its version in sysfs; without one the detector works too."""
    line = "NVRM: Xid (PCI:0000:18:00): 139, pid=1, name=x, Ch 00000001"
    host, detector = FakeHost(tmp_path), XidDetector()
    assert detector.unsupported(host) is None
    assert feed(detector, [line])[0].facts["mnemonic"] == "ROBUST_CHANNEL_OFA1_ERROR"
    host.write("/sys/module/nvidia/version", "535.129.03\n")
    assert detector.unsupported(host) is None
    assert feed(detector, [line])[0].facts["mnemonic"] == "ROBUST_CHANNEL_FAST_PATH_ERROR"


def test_words_keep_the_folklore_right() -> None:
    """62 is no loss of the bus, 94 is contained, and the pid of a 119 blames nobody."""
    detector = XidDetector()
    halt, contained, rpc, old = feed(
        detector,
        [
            "NVRM: Xid (PCI:0000:18:00): 62, 0c83(1870) 00000000 00000000",
            "NVRM: Xid (PCI:0000:18:00): 94, Contained: SM. RST: No, D-RST: No",
            "NVRM: Xid (PCI:0000:18:00): 119, pid=1, name=nvidia-smi, Timeout waiting for RPC from GSP!",
            "NVRM: Xid (PCI:0000:18:00): 139, Ch 00000001",
        ],
    )
    assert "micro-controller" in detector.meaning(halt)
    assert "contained to one application" in detector.meaning(contained)
    assert "not of a culprit" in detector.meaning(rpc)
    assert "meant something else in older drivers" in detector.meaning(old)


PIECES = ["NVRM: ", "Xid (PCI:0000:e5:00", "): ", "79", ", ", "pid=", "name=", "SXid (", "154, ", "GPU ", "0x1"]
PIECES += ["Link ", "\n", "' ", "nvidia-nvswitch0: ", "Fatal   XC0 i0 Link 01 (", "(0x1", ")", " ", "144, "]
ANY_TEXT = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300).map(lambda raw: raw.decode("utf-8", "backslashreplace")),
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
)


@given(ANY_TEXT)
def test_arbitrary_text_never_raises(text: str) -> None:
    """Whatever a record holds, the detector answers, in JSON types, with a meaning."""
    detector = XidDetector()
    for finding in feed(detector, [text]):
        assert set(finding.facts) <= set(XidDetector.emits[finding.kind])
        assert isinstance(detector.meaning(finding), str)


@given(
    ANY_TEXT, ANY_TEXT, st.sampled_from([OFF_BUS, XID_79, "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 24007, Fatal, x"])
)
def test_text_inside_a_record_is_never_taken_for_the_drivers(before: str, after: str, forged: str) -> None:
    """What stands behind other text in a record is glued, a warning, and changes nothing that is remembered."""
    if before.lstrip().startswith(("NVRM", "nvidia")) or not before:
        before = "tmpfs: " + before
    for finding in feed(XidDetector(), [f"{before}{forged}{after}"]):
        assert finding.facts.get("glued") is True
        assert finding.severity is Severity.WARNING
        assert finding.raised


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_hostile_name_changes_neither_code_nor_address_nor_pid(name: bytes) -> None:
    """A process may be called anything; the line stays the line."""
    comm = name.decode("utf-8", "backslashreplace")
    line = f"NVRM: Xid (PCI:0000:e5:00): 43, pid=77, name={comm}, Ch 0000000c"
    (finding,) = feed(XidDetector(), [line])
    assert (finding.subject, finding.facts["xid"], finding.facts["pid"]) == ("gpu:0000:e5:00.0", 43, 77)
    assert "glued" not in finding.facts


@given(st.integers(0, 5_000), st.sampled_from([" ", "0x0 ", "a, ", "\n", "Link "]))
def test_long_records_are_cut(count: int, piece: str) -> None:
    """A record of any length costs no more than its first KiB."""
    (finding,) = feed(XidDetector(), [f"NVRM: Xid (PCI:0000:e5:00): 144, {piece * count}"])
    assert len(str(finding.facts.get("text", ""))) <= 1024
