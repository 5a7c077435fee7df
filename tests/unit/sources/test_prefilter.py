"""The literal filter before all log detectors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bandog.sources.prefilter import Prefilter, kmsg_escaped


def escaped_like_the_kernel(text: bytes) -> bytes:
    """Spell bytes as printk's devkmsg does: anything outside 0x20..0x7e and the backslash as \\xNN."""
    return b"".join(b"\\x%02x" % b if b < 32 or b >= 127 or b == 92 else bytes((b,)) for b in text)


def test_wants_a_line_that_holds_any_needle() -> None:
    prefilter = Prefilter([b"NVRM: ", b"SXid ("])
    assert prefilter.wants(b"NVRM: Xid (PCI:0000:e5:00): 94")
    assert prefilter.wants(b"nvidia-nvswitch0: SXid (PCI:0000:a6:00.0): 12028")
    assert not prefilter.wants(b"EXT4-fs (vda): mounted filesystem")


def test_wants_nothing_without_needles() -> None:
    assert not Prefilter([]).wants(b"NVRM: Xid")
    assert not Prefilter([]).wants_text("NVRM: Xid")


def test_an_empty_needle_wants_everything() -> None:
    assert Prefilter([b"", b"x"]).wants(b"anything")


def test_a_needle_within_another_is_enough_for_both() -> None:
    assert Prefilter([b"NVRM: Xid", b"NVRM", b"NVRM"]).needles == (b"NVRM",)


@given(st.binary(max_size=40), st.binary(max_size=6), st.binary(max_size=40))
def test_finds_any_needle_in_the_escaped_record(before: bytes, needle: bytes, after: bytes) -> None:
    raw = escaped_like_the_kernel(before + needle + after)
    assert Prefilter([needle]).wants(raw)


@given(st.text(max_size=40), st.text(max_size=6), st.text(max_size=40))
def test_finds_any_needle_in_text(before: str, needle: str, after: str) -> None:
    needles = [needle.encode("utf-8", "surrogatepass")] if needle.isprintable() else []
    assert Prefilter(needles).wants_text(before + needle + after) or not needles


def test_escapes_as_the_kernel_does() -> None:
    assert kmsg_escaped(b"a\tb\\c\n\xc3\xa4") == b"a\\x09b\\x5cc\\x0a\\xc3\\xa4"
