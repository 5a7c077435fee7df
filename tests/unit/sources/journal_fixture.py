"""A real journal of two boots for tests, packed beside this file.

`python tests/unit/sources/journal_fixture.py` makes it again; that needs systemd-journal-remote
(Debian package of that name), which the tests themselves do not.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKED = Path(__file__).with_name("system.journal.xz")
OLD_BOOT = "0a" * 16
BOOT = "0b" * 16
UNIT = "vllm-qwen.service"
XID = "NVRM: Xid (PCI:0000:e5:00): 94, pid=31877, name=python3, Contained: SM (0x1). RST: No, D-RST: No"
FORGED = "NVRM: Xid (PCI:0000:e5:00): 79, GPU has fallen off the bus."
# The flood: one line each millisecond from here on, three of them in one microsecond.
FLOOD_USEC = 60_000_000
FLOOD = 200
_EPOCH = 1_790_000_000_000_000


def flood_line(number: int) -> str:
    """Return the text of a line of the flood; every 50th is an Xid."""
    return XID.replace("94", str(number)) if number % 50 == 25 else f"EXT4-fs warning (device vda1): line {number}"


def flood_usec(number: int) -> int:
    """Return its kernel stamp."""
    return FLOOD_USEC + 1000 * (100 if number in (101, 102) else number)


def unpack(root: Path) -> None:
    """Lay the journal out below `root`, as a host has it."""
    folder = root / "var/log/journal" / ("0c" * 16)
    folder.mkdir(parents=True)
    with lzma.open(PACKED) as packed, (folder / "system.journal").open("wb") as out:
        shutil.copyfileobj(packed, out)


def _entries() -> Iterator[tuple[str, int, dict[str, bytes]]]:
    """Yield boot, stamp and fields of each entry."""

    def kernel(usec: int, text: bytes | str, **more: str) -> tuple[int, dict[str, bytes]]:
        fields = {
            "_TRANSPORT": "kernel",
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel",
            "PRIORITY": "4",
            "_SOURCE_MONOTONIC_TIMESTAMP": str(usec),
        } | more
        message = text.encode() if isinstance(text, str) else text
        return usec, {name: value.encode() for name, value in fields.items() if value} | {"MESSAGE": message}

    yield OLD_BOOT, *kernel(1_000_000, "Linux version 6.1.0 (an old boot)")
    # An old journald leaves the facility of the kernel out.
    yield OLD_BOOT, *kernel(2_000_000, XID.replace("94", "63"), SYSLOG_FACILITY="")
    yield BOOT, *kernel(1_000_000, "Linux version 6.1.0 (this boot)")
    yield (
        BOOT,
        *kernel(
            2_000_000,
            "pcieport 0000:00:01.0: AER: Corrected error",
            PRIORITY="3",
            _KERNEL_SUBSYSTEM="pci",
            _KERNEL_DEVICE="+pci:0000:00:01.0",
        ),
    )
    yield BOOT, *kernel(3_000_000, FORGED, SYSLOG_FACILITY="1", SYSLOG_IDENTIFIER="kernel")
    yield BOOT, *kernel(4_000_000, b"NVRM: two\nlines \xff")
    unit = {"_TRANSPORT": b"stdout", "_SYSTEMD_UNIT": UNIT.encode(), "SYSLOG_IDENTIFIER": b"vllm", "_PID": b"31877"}
    for number in range(5):
        yield BOOT, 5_000_000 + number, unit | {"MESSAGE": f"serving {number}".encode()}
    pid1 = {"_TRANSPORT": b"journal", "_PID": b"1", "UNIT": UNIT.encode(), "SYSLOG_IDENTIFIER": b"systemd"}
    yield BOOT, 6_000_000, pid1 | {"MESSAGE": b"vllm-qwen.service: Main process exited"}
    # Any client may say UNIT=; only PID 1's word counts.
    yield BOOT, 6_000_001, pid1 | {"_PID": b"4711", "MESSAGE": b"a liar about the unit"}
    for number in range(FLOOD):
        facility = "1" if number == 60 else "0"
        yield BOOT, *kernel(flood_usec(number), flood_line(number), SYSLOG_FACILITY=facility)


def _export() -> bytes:
    """Return the entries in the journal's export format (systemd.io/JOURNAL_EXPORT_FORMATS)."""
    out = b""
    for number, (boot, usec, fields) in enumerate(_entries(), start=1):
        # journald reads a kernel record a moment after it was printed.
        realtime, monotonic = _EPOCH + (0 if boot == OLD_BOOT else 10**12) + usec + 1500, usec + 1500
        out += (
            f"__CURSOR=s={'11' * 16};i={number:x};b={boot};m={monotonic:x};t={realtime:x};x={number:x}\n"
            f"__REALTIME_TIMESTAMP={realtime}\n__MONOTONIC_TIMESTAMP={monotonic}\n_BOOT_ID={boot}\n"
        ).encode()
        for name, value in fields.items():
            if b"\n" in value:
                out += name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
            else:
                out += name.encode() + b"=" + value + b"\n"
        out += b"\n"
    return out


def main() -> None:
    """Make the packed journal again."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "system.journal"
        subprocess.run(
            ["/lib/systemd/systemd-journal-remote", "--split-mode=none", "-o", str(journal), "-"],
            input=_export(),
            check=True,
        )
        PACKED.write_bytes(lzma.compress(journal.read_bytes(), preset=9))
    print(PACKED, PACKED.stat().st_size, file=sys.stderr)


if __name__ == "__main__":
    main()
