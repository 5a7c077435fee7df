"""The form of one /dev/kmsg record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.sources.kmsg_record import record_fields, record_text, split_record, unescape


def test_splits_header_and_text() -> None:
    record = split_record(b"3,1834,8123551207,-;NVRM: Xid (PCI:0000:e5:00): 94, a;b\n")
    assert record is not None
    assert (record.prio, record.seq, record.usec) == (3, 1834, 8123551207)
    assert record.kernel
    assert record_text(record.body) == "NVRM: Xid (PCI:0000:e5:00): 94, a;b"


def test_reads_fields_and_ignores_header_fields_it_does_not_know() -> None:
    record = split_record(
        b"6,7,99,-,caller=T123,new=1;pcieport 0000:00:01.0: AER\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n"
    )
    assert record is not None
    assert dict(record_fields(record.body)) == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:00:01.0"}
    assert record_text(record.body) == "pcieport 0000:00:01.0: AER"


def test_a_fragment_of_a_line_is_a_record() -> None:
    record = split_record(b"4,1834,8123551207,c;NVRM: x")
    assert record is not None and record_text(record.body) == "NVRM: x"


@pytest.mark.parametrize(
    ("prio", "kernel"), [(b"0", True), (b"7", True), (b"8", False), (b"11", False), (b"30", False), (b"2051", False)]
)
def test_only_facility_0_is_the_kernel(prio: bytes, kernel: bool) -> None:
    record = split_record(prio + b",1,2,-;x")
    assert record is not None and record.kernel is kernel


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b";",
        b"text without a header",
        b"3,1,2;three header fields",
        b"-1,1,2,-;negative",
        b"+3,1,2,-;signed",
        b"3, 1,2,-;blank",
        b"3,1_0,2,-;underscore",
        b"3,,2,-;empty",
        "3,\N{ARABIC-INDIC DIGIT ONE},2,-;not ASCII".encode(),
        b"3,1,9999999999999999,-;stamp past any uptime",
        b"3,1," + b"9" * 5000 + b",-;number without end",
    ],
)
def test_what_is_no_record_is_none(raw: bytes) -> None:
    assert split_record(raw) is None


def test_unescapes_to_real_characters() -> None:
    assert unescape(b"a\\x09b\\x0ac\\x5cd \\xc3\\xa4") == "a\tb\nc\\d \u00e4"


def test_bytes_that_are_no_utf8_stay_visible() -> None:
    assert unescape(b"name \\xff\\xfe") == "name \\xff\\xfe"


def test_an_unfinished_escape_stays_as_it_is() -> None:
    assert unescape(b"a\\x4") == "a\\x4"
    assert unescape(b"a\\") == "a\\"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise(raw: bytes) -> None:
    record = split_record(raw)
    if record is not None:
        record_text(record.body)
        record_fields(record.body)
    unescape(raw)


@given(st.integers(0, 4000), st.integers(0, 2**63), st.integers(0, 10**14), st.text(st.characters(codec="utf-8")))
def test_what_the_kernel_prints_comes_back(prio: int, seq: int, usec: int, text: str) -> None:
    escaped = b"".join(
        b"\\x%02x" % byte if byte < 32 or byte >= 127 or byte == 92 else bytes((byte,)) for byte in text.encode()
    )
    record = split_record(b"%d,%d,%d,-;%b\n KEY=va\\x6cue\n" % (prio, seq, usec, escaped))
    assert record is not None
    assert (record.prio, record.seq, record.usec, record_text(record.body)) == (prio, seq, usec, text)
    assert dict(record_fields(record.body)) == {"KEY": "value"}
