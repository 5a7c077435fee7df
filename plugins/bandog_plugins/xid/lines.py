"""The grammar of one record of the NVIDIA driver: which line it is, and its head fields.

Forms of the branches R304 to R6xx, read from `src/nvidia/src/kernel/gpu/rc/kernel_rc.c` (krcReportXid),
`src/common/nvswitch/kernel/inc/common_nvswitch.h` and `kernel-open/nvidia/nv.c` of
NVIDIA/open-gpu-kernel-modules, and from logs of older branches. A text is one record, unescaped; it
may hold inner newlines and is never split at them.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

LONGEST = 1024
"""A record is cut here before matching: the kernel's own limit is about 1000 bytes, and a pattern that
is quadratic in runs of blanks stays harmless."""

ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(
    rf"(?:NVRM|nvidia_dev_xid): Xid \((?:PCI:)?(?P<pci>{ADDRESS})(?: GPU-I:(?P<gi>\d{{1,9}}))?"
    r"(?: GPU-CI:(?P<ci>\d{1,9}))?\): (?P<code>\d{1,9})(?:,\s*|\s+|$)(?P<rest>.*)$",
    re.S,
)
_SXID = re.compile(
    rf"(?:nvidia-nvswitch(?P<switch>\d{{1,9}})|nvswitch_dev_sxid): SXid \((?:PCI:)?(?P<pci>{ADDRESS})\): "
    r"(?P<code>\d{1,9})(?:,\s*|\s+|$)(?P<rest>.*)$",
    re.S,
)
_SXID_MESSAGE = re.compile(
    r"(?:(?P<tag>Fatal|Non-fatal|Correctable), )?(?:Link (?P<link>\d{1,9}) )?(?P<text>.*?)(?P<first> \(First\))?\s*$",
    re.S,
)
_SXID_DETAIL = re.compile(r"Severity \d+ Engine instance \d+ Sub-engine instance \d+|Data \{")
_PID = re.compile(r"pid=(?P<pid>\d{1,10}|'?<unknown>'?)(?:,\s|$)")
_COMM = 15  # bytes that a task's name has at most (TASK_COMM_LEN - 1)
_ESCAPED_BYTE = re.compile(r"\\x[0-9a-f]{2}")

# How a message can begin. Needed only to find the end of a process name that itself holds ", ".
_MESSAGE_START = re.compile(
    r"Ch\b|channel\b|Channel\b|ChID\b|Graphics\b|Class Error|MMU|Row Remap|Bank Remap|DRAM|Dynamic Page"
    r"|NVLink|NETIR|NVLINK_|GPU |An uncorrect|Contained:|Uncontained:|Disabling|SM SBE|Timeout|GSP "
    r"|SEC_FAULT|Error status|FSP |Head |CMDre|Retiring|Unable|Marking|Repairing|Guest|vGPU|GDDR|HBM"
    r"|[0-9a-f]{4,8}[ (]|\S.* +(?:Fatal|Nonfatal) +XC\d"
)

# Lines without a code, by what they tell. The order matters where one text holds two of them.
_OTHER: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.S))
    for name, pattern in (
        (
            "uuid",
            rf"NVRM: GPU at (?:PCI:)?(?P<pci>{ADDRESS}): "
            r"(?P<uuid>GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
        ),
        ("board-serial", r"NVRM: GPU Board Serial Number:\s*(?P<serial>\S*)\s*$"),
        ("off-bus", rf"NVRM: GPU (?P<pci>{ADDRESS}): GPU has fallen off the bus"),
        ("serial", rf"NVRM: GPU (?P<pci>{ADDRESS}): GPU serial number is (?P<serial>\S+?)\.?\s*$"),
        # The text goes on with other things too ("… is not supported by"), so the loss must be in it.
        (
            "off-bus-probe",
            rf"NVRM: The NVIDIA GPU (?P<pci>{ADDRESS})(?:\s*$|.{{0,200}}?fallen\s+off\s+the\s+(?:NVRM:\s+)?bus)",
        ),
        (
            "off-bus-probe-head",
            rf"NVRM: The NVIDIA GPU (?P<pci>{ADDRESS}) \(PCI ID: [0-9a-fA-F]{{4}}:[0-9a-fA-F]{{4}}\)\s*$",
        ),
        ("off-bus-probe-tail", r"NVRM:\s+(?:installed in this system has )?fallen off the bus and is"),
        ("probe-failed", r"NVRM: The NVIDIA probe routine (?:failed|was not called) for (?P<count>\d{1,9}) device"),
        (
            "init-failed",
            rf"NVRM: (?:GPU (?P<pci>{ADDRESS}): )?(?:RmInitAdapter failed!?(?: \((?P<status>0x[^)\s]{{1,40}})\))?"
            r"|rm_init_adapter failed(?:, device minor number (?P<minor>\d{1,9}))?)",
        ),
        ("no-power", rf"NVRM: (?:GPU (?P<pci>{ADDRESS}): )?GPU does not have the necessary power cables"),
        (
            "gsp-sanity",
            r"NVRM: (?:\w+: )?GPU(?P<instance>\d{1,9}) sanity check failed (?P<status>0x[0-9a-fA-F]{1,16})"
            r" waiting for RPC response from GSP",
        ),
        ("uvm-fatal", r"NVRM: (?:\w+: )?uvm encountered global fatal error (?P<status>0x[0-9a-fA-F]{1,16})"),
        (
            "driver-version",
            r"NVRM: loading NVIDIA UNIX .*?Kernel Module(?: for \w+)?\s+(?P<version>\d{3}\.\d+(?:\.\d+)?)\b",
        ),
    )
)


class XidLine(NamedTuple):
    """An Xid. `pid` and `name` are the owner's as printed, None where the driver did not know."""

    glued: bool
    pci: str
    code: int
    gi: int | None
    ci: int | None
    pid: int | None
    name: str | None
    message: str


class SxidLine(NamedTuple):
    """An SXid. `detail` marks the second and further lines of an event; `tag` is the driver's word."""

    glued: bool
    pci: str
    code: int
    switch: int | None
    tag: str | None
    link: int | None
    text: str
    first: bool
    detail: bool


class OtherLine(NamedTuple):
    """A line without a code: `name` says which, `groups` what it carries."""

    glued: bool
    name: str
    groups: dict[str, str]


Line: TypeAlias = XidLine | SxidLine | OtherLine


def parse(text: str) -> Line | None:
    """Return what the record `text` is, or None if it is none of ours. Never raises."""
    text = text[:LONGEST].rstrip("\n")
    match = _XID.search(text)
    if match is not None:
        return None if _planted(match) else _xid(match)
    match = _SXID.search(text)
    if match is not None:
        return None if _planted(match) else _sxid(match)
    for name, pattern in _OTHER:
        match = pattern.search(text)
        if match is not None:
            groups = {key: value for key, value in match.groupdict().items() if value}
            return None if _planted(match) else OtherLine(match.start() > 0, name, groups)
    return None


def _planted(match: re.Match[str]) -> bool:
    """Return whether the text stands behind an inner newline, real or as a log tool spells it.

    The driver prints with KERN_CONT, so its text can be glued to an unfinished line of somebody
    else, but an unfinished line has no newline: what follows one is part of a string that a user
    chose, such as a file name, and is no line of the driver.
    """
    before = match.string[max(0, match.start() - 4) : match.start()]
    return before.endswith(("\n", "\\x0a", "\\n", "#012"))


def _xid(match: re.Match[str]) -> XidLine:
    pid, name, message = split_owner(match["rest"].rstrip("\n"))
    return XidLine(
        glued=match.start() > 0,
        pci=match["pci"],
        code=int(match["code"]),
        gi=None if match["gi"] is None else int(match["gi"]),
        ci=None if match["ci"] is None else int(match["ci"]),
        pid=pid,
        name=name,
        message=message,
    )


def _sxid(match: re.Match[str]) -> SxidLine:
    rest = match["rest"]
    parts = _SXID_MESSAGE.match(rest)
    assert parts is not None  # every part of the pattern is optional
    return SxidLine(
        glued=match.start() > 0,
        pci=match["pci"],
        code=int(match["code"]),
        switch=None if match["switch"] is None else int(match["switch"]),
        tag=parts["tag"],
        link=None if parts["link"] is None else int(parts["link"]),
        text=rest.strip(),
        first=parts["first"] is not None,
        detail=_SXID_DETAIL.match(rest) is not None,
    )


def split_owner(rest: str) -> tuple[int | None, str | None, str]:
    """Return (pid, name, message) of what follows the code.

    The name is any 14 or 15 bytes that a process chose for itself, so it may hold ", ": the border
    is the first ", " within reach behind which a known message begins.
    """
    pid = name = None
    match = _PID.match(rest)
    if match is not None:
        pid = int(match["pid"]) if match["pid"].isdigit() else None
        rest = rest[match.end() :]
    if rest.startswith("name="):
        name, rest = _split_name(rest[len("name=") :])
    return pid, name, rest


def _split_name(body: str) -> tuple[str | None, str]:
    cuts = [match.start() for match in re.finditer(r"(?=, )", body)]
    near = [cut for cut in cuts if _bytes_in(body[:cut]) <= _COMM] or cuts[:1]
    best = next((cut for cut in near if _MESSAGE_START.match(body, cut + 2)), near[0] if near else None)
    name, rest = (body, "") if best is None else (body[:best], body[best + 2 :])
    return (None if name in ("", "<unknown>") else name), rest


def _bytes_in(text: str) -> int:
    """Return how many bytes the kernel printed for `text`; a byte that is no UTF-8 reads as `\\xNN`."""
    return len(_ESCAPED_BYTE.sub("?", text).encode("utf-8", "backslashreplace"))
