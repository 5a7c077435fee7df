"""What the message of an Xid carries, decoded by code (the code picks the decoder, never the other way round).

A message that does not fit its decoder gives no facts and leaves the finding as it is. The forms are
those of GSP firmware and of the closed driver, known from logs of R390 to R595 and, for R6xx, from
`src/nvidia/src/kernel/gpu/events` of NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bandog import Fact

Carried = dict[str, Fact | None]

_GRAPHICS = re.compile(
    r"Graphics (?:SM Warp Exception|SM Global Exception|Exception)"
    r"(?: on \(GPC (?P<gpc>\d{1,4}), TPC (?P<tpc>\d{1,4})(?:, SM (?P<sm>\d{1,4}))?\))?: (?P<cause>.*)",
    re.S,
)
_MMU = re.compile(
    r"(?:Ch |channel 0x)(?P<channel>[0-9a-f]+), intr [0-9a-f]+\. MMU Fault: ENGINE (?P<engine>\w+) "
    r"(?:GPC(?P<gpc>\d{1,4}) )?(?P<client>\w+) faulted @ (?P<address>0x[0-9a-f_]+)\. "
    r"Fault is of type (?P<fault>\w+) (?P<access>\w+)"
)
_PREVIOUS = re.compile(r" caused by previous Xid (?P<previous>\d{1,9})\s*$")
_ECC = re.compile(
    r"uncorrectable (?:double bit error \(DBE\)|ECC error) has been detected on GPU in (?:the )?(?P<component>[\w -]+?)"
    r"(?: at (?:physAddr (?P<address>0x[0-9a-f]+) )?partition (?P<partition>\d{1,4}), "
    r"subpartition (?P<subpartition>\d{1,4}))?\.?$"
)
_DRAM = re.compile(
    r"(?P<memory>\w+), Uncorrectable DRAM error in FBPA (?P<partition>\d{1,4}) subpartition "
    r"(?P<subpartition>\d{1,4}) physAddr (?P<address>0x[0-9a-f]+)"
)
_SRAM = re.compile(r"(?P<component>[^,]{1,60}), Uncorrectable SRAM error")
_ROW = re.compile(r"Row Remapper(?: Error)?: (?:New row )?(?:\((?P<row>0x[0-9a-f]+)\)\s*)?(?:- )?(?P<cause>.*)", re.S)
_PAGE = re.compile(r"Dynamic Page Retirement: (?P<cause>.*?)\s*\((?P<page>[^)]*)\)", re.S)
_RETIREMENT = re.compile(r"DRAM Retirement failed due to (?P<cause>.+?) at (?P<row>0x[0-9a-f]+)")
_CONTAINMENT = re.compile(
    r"(?:Contained|Uncontained): (?P<component>[^().]+?)(?: \([^()]+\))?\."
    r"(?: physAddr: (?P<address>0x[0-9a-f]+)\.?)? RST: (?P<rst>Yes|No), D-RST: (?P<drst>Yes|No)"
)
_RPC = re.compile(
    r"Timeout (?:after (?P<seconds>\d{1,9})s of )?waiting for RPC (?:response )?from (?:GPU(?P<gpu>\d{1,4}) )?"
    r"GSP(?P<glued>\d{0,4})! Expected function (?:(?P<number>\d{1,9}) )?\(?(?P<function>\w+)\)?"
)
_GSP_CRASH = re.compile(r"GSP task exception: (?P<cause>[^(]{1,120}?) \(cause:(?P<status>0x[0-9a-f]+)\)")
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x(?P<old>[0-9a-f]{1,8}) \([^)]*\) to 0x(?P<new>[0-9a-f]{1,8}) \([^)]*\)"
)
_SPARE = re.compile(
    r"(?:Retiring|Unable to retire) TPC (?P<tpc>\d{1,4}) from GPC (?P<gpc>\d{1,4})|"
    r"Marking (?P<component>Channel|LTS) (?P<channel>\d{1,4}) in (?:FBPA|FBP|FPB) (?P<partition>\d{1,4})"
)
_CHANNEL = re.compile(r"(?:Ch|channel|Channel|Channel ID|ChID|ChId) (?:0x)?(?P<channel>[0-9a-f]{4,8})\b")

_NUMBERS = ("gpc", "tpc", "sm", "partition", "subpartition", "seconds", "previous")


def _facts(match: re.Match[str] | None) -> Carried:
    if match is None:
        return {}
    carried: Carried = {}
    for name, value in match.groupdict().items():
        if value:
            carried[name] = int(value) if name in _NUMBERS else value.strip()
    return carried


def _graphics(message: str) -> Carried:
    return _facts(_GRAPHICS.match(message))


def _mmu(message: str) -> Carried:
    return _facts(_MMU.match(message))


def _ecc(message: str) -> Carried:
    return _facts(_ECC.search(message))


def _dram(message: str) -> Carried:
    return _facts(_DRAM.match(message))


def _sram(message: str) -> Carried:
    return _facts(_SRAM.match(message))


def _retirement(message: str) -> Carried:
    for pattern in (_ROW, _PAGE, _RETIREMENT):
        carried = _facts(pattern.match(message))
        if carried:
            # What is already pending only asks for the reset that is due anyway.
            if "pending" in str(carried.get("cause", "")):
                carried["pending"] = True
            return carried
    return {}


def _containment(message: str) -> Carried:
    carried = _facts(_CONTAINMENT.match(message))
    for flag in ("rst", "drst"):
        if flag in carried:
            carried[flag] = carried[flag] == "Yes"
    return carried


def _rpc(message: str) -> Carried:
    match = _RPC.match(message)
    if match is None:
        return {}
    instance = match["gpu"] or match["glued"]
    return {
        "seconds": int(match["seconds"]) if match["seconds"] else None,
        "instance": int(instance) if instance else None,  # the driver's own number, not NVML's index
        "function": match["function"],
    }


def _gsp_crash(message: str) -> Carried:
    return _facts(_GSP_CRASH.match(message))


def _recovery(message: str) -> Carried:
    match = _RECOVERY.match(message)
    if match is None:
        return {}
    return {"recovery_action": int(match["new"], 16), "recovery_before": int(match["old"], 16)}


def _spare(message: str) -> Carried:
    return _facts(_SPARE.match(message))


DECODERS: Mapping[int, Callable[[str], Carried]] = {
    13: _graphics,
    31: _mmu,
    48: _ecc,
    63: _retirement,
    64: _retirement,
    94: _containment,
    95: _containment,
    119: _rpc,
    120: _gsp_crash,
    154: _recovery,
    156: _spare,
    157: _spare,
    160: _spare,
    171: _dram,
    172: _sram,
    175: _rpc,
}


def decode(code: int, message: str) -> Carried:
    """Return the facts in the message of Xid `code`; {} where there are none or the form is unknown."""
    decoder = DECODERS.get(code)
    carried = decoder(message) if decoder is not None else {}
    if "channel" not in carried:
        carried.update(_facts(_CHANNEL.match(message)))
    if code == 45:
        carried.update(_facts(_PREVIOUS.search(message)))
    return carried
