"""The journal as history, over a real journal file of two boots."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from journal_fixture import BOOT, FLOOD, FORGED, OLD_BOOT, UNIT, XID, flood_line, unpack

from bandog.host.paths import Paths
from bandog.sources.journal import JournalUnavailable, boots, kernel_records, resolve_boot, unit_lines


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    unpack(tmp_path)
    return Paths(root=tmp_path)


def test_yields_the_kernels_records_of_every_boot_in_order(paths: Paths) -> None:
    records = list(kernel_records(paths))
    assert [record.text for record in records[:4]] == [
        "Linux version 6.1.0 (an old boot)",
        XID.replace("94", "63"),
        "Linux version 6.1.0 (this boot)",
        "pcieport 0000:00:01.0: AER: Corrected error",
    ]
    assert [record.at.boot_id for record in records[:3]] == [OLD_BOOT, OLD_BOOT, BOOT]
    assert not any(record.live for record in records)
    assert all(record.kernel for record in records)


def test_a_line_that_a_process_wrote_to_kmsg_is_no_kernel_record(paths: Paths) -> None:
    assert FORGED not in [record.text for record in kernel_records(paths)]


def test_a_record_carries_its_kernel_time_level_and_device(paths: Paths) -> None:
    record = next(record for record in kernel_records(paths, boot=BOOT) if "AER" in record.text)
    assert (record.usec, record.level) == (2_000_000, 3)
    assert record.at.boottime == timedelta(seconds=2)
    assert dict(record.fields) == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:00:01.0"}


def test_an_inner_newline_and_bytes_that_are_no_text_stay_in_one_record(paths: Paths) -> None:
    assert "NVRM: two\nlines \\xff" in [record.text for record in kernel_records(paths)]


def test_the_same_line_has_the_same_identity_as_from_kmsg(paths: Paths) -> None:
    from bandog.domain.model import Record

    record = next(record for record in kernel_records(paths, boot=BOOT) if record.text == flood_line(25))
    same = Record(text=record.text, at=record.at, source="kmsg", usec=record.usec, seq=77)
    assert record.identity == same.identity


def test_needles_leave_out_the_rest(paths: Paths) -> None:
    texts = [record.text for record in kernel_records(paths, boot="0", needles=[b"NVRM: Xid"])]
    assert texts == [flood_line(number) for number in range(25, FLOOD, 50)]


def test_an_open_detector_gets_everything(paths: Paths) -> None:
    assert len(list(kernel_records(paths, boot="0", needles=[b"nothing"], is_open=lambda: True))) == FLOOD - 1 + 3


def test_only_the_last_hours_are_read_on_request(paths: Paths) -> None:
    assert list(kernel_records(paths, back=timedelta(hours=1))) == [], "the journal ends long ago"


def test_boots_are_known_with_their_span(paths: Paths) -> None:
    old, new = boots(paths)
    assert (old.boot_id, new.boot_id) == (OLD_BOOT, BOOT)
    assert old.last < new.first
    assert new.last - new.first == timedelta(seconds=59, milliseconds=199)


@pytest.mark.parametrize(
    ("text", "boot"), [("0", BOOT), ("-1", OLD_BOOT), (OLD_BOOT, OLD_BOOT), (OLD_BOOT.upper(), OLD_BOOT)]
)
def test_a_boot_is_named_by_its_place_or_its_id(paths: Paths, text: str, boot: str) -> None:
    assert resolve_boot(paths, text) == boot


@pytest.mark.parametrize("text", ["-2", "1", "5", "", "yesterday", "ff" * 16])
def test_an_unknown_boot_is_said_to_be_unknown(paths: Paths, text: str) -> None:
    with pytest.raises(JournalUnavailable, match=r"knows no boot .* it has 2"):
        resolve_boot(paths, text)


def test_the_log_of_a_unit_holds_its_last_lines_and_what_pid_1_says(paths: Paths) -> None:
    lines = unit_lines(paths, UNIT, lines=3)
    assert [(line.by, line.pid, line.text) for line in lines] == [
        ("vllm", 31877, "serving 3"),
        ("vllm", 31877, "serving 4"),
        ("systemd", 1, "vllm-qwen.service: Main process exited"),
    ]
    assert len(unit_lines(paths, UNIT, lines=100)) == 6
    assert unit_lines(paths, UNIT, lines=100, boot_id=OLD_BOOT) == ()
    assert unit_lines(paths, "other.service", lines=100) == ()


def test_a_host_without_a_journal_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match=r"no journal to read in .*journald does not run here"):
        next(kernel_records(Paths(root=tmp_path)))


def test_a_damaged_journal_raises_nothing_else(paths: Paths) -> None:
    (journal,) = paths.root.glob("var/log/journal/*/system.journal")
    data = bytearray(journal.read_bytes())
    for place in range(4096, 400_000, 97):
        data[place] ^= 0xFF
    journal.write_bytes(data)
    try:
        for _ in kernel_records(paths):
            pass
    except JournalUnavailable:
        pass
