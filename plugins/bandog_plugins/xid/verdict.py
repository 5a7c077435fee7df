"""What a code together with its message calls for: the catalogue's words, refined by the message.

The order is that of the catalogue: what the number meant in this driver, what the message decides,
what stands in where another line should decide, what the message refines. The driver's own advice
(Xid 154) is another finding; who acts weighs the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bandog import Severity

from .catalog import Catalog, Entry, Version
from .lines import SxidLine
from .messages import Carried, decode
from .nvlink import LINK_CODES, NVLINK5_CODES, decode_registers, decode_words, stronger

SEVERITIES = {
    "info": Severity.INFO,
    "warning": Severity.WARNING,
    "error": Severity.ERROR,
    "fatal": Severity.CRITICAL,
}

# What an action says of the GPU when the message, and not the entry, chose it: severity, usable.
_WEIGHT = {
    "none": ("info", "yes"),
    "notify": ("warning", "yes"),
    "restart_app": ("error", "yes"),
    "contact_support": ("error", "unknown"),
    "inspect_hardware": ("error", "no"),
    "reset_gpu": ("fatal", "no"),
    "reset_fabric": ("fatal", "no"),
    "reboot": ("fatal", "no"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The catalogue's view of one line. `action` is always a final word, never one that points elsewhere."""

    action: str
    severity: Severity
    usable: str
    class_: str = ""
    mnemonic: str = ""
    carried: Carried


def of_xid(catalog: Catalog, code: int, message: str, version: Version | None) -> Verdict:
    """Return what Xid `code` with `message` calls for."""
    entry = catalog.xid(code, version)
    carried = decode(code, message)
    if entry is None:  # nobody has described it: tell people, never more
        return Verdict(action="notify", severity=Severity.ERROR, usable="unknown", carried=carried)
    verdict = Verdict(
        action=entry.fallback if entry.fallback else entry.action,
        severity=SEVERITIES[entry.severity],
        usable=entry.usable,
        class_=entry.class_,
        mnemonic=entry.mnemonic,
        carried=carried,
    )
    if entry.code != code:  # the number meant something else then, and the decoders do not fit
        return verdict
    if code in LINK_CODES:
        return _of_link(catalog, entry, verdict, message, version)
    return _refined(catalog, code, verdict)


def _of_link(catalog: Catalog, entry: Entry, verdict: Verdict, message: str, version: Version | None) -> Verdict:
    words = entry.code in NVLINK5_CODES or entry.code == 155
    found = decode_words(catalog, entry.code, message, version) if words else decode_registers(catalog, message)
    carried = {
        **verdict.carried,
        "link": found.link,
        "component": found.unit,
        "fatal": found.fatal,
        "error_status": found.error_status,
        "reason": found.reason,
        "cause": found.meaning,
    }
    verdict = replace(verdict, carried=carried)
    if found.action is None:
        return verdict
    if entry.action != "decode_message":  # 136 has an action of its own: the registers can only add to it
        return replace(verdict, action=stronger(entry.action, found.action))
    action = "restart_app" if found.action == "follow_primary" else found.action
    severity, usable = _WEIGHT[action]
    return replace(verdict, action=action, severity=SEVERITIES[found.severity or severity], usable=usable)


def _refined(catalog: Catalog, code: int, verdict: Verdict) -> Verdict:
    carried = verdict.carried
    if code == 154 and "recovery_action" in carried:
        value = carried["recovery_action"]
        action = catalog.recovery.get(value, "contact_support") if isinstance(value, int) else "contact_support"
        weighed = _weighed(verdict, action)
        # 4 is "drain and reset": work that runs may end before anything is lost.
        return replace(weighed, severity=Severity.ERROR) if value == 4 else weighed
    if code == 64 and carried.get("pending"):
        return _weighed(verdict, "notify")
    if code in (94, 95) and "rst" in carried:
        if carried["rst"]:
            return _weighed(verdict, "reset_gpu")
        if carried["drst"]:  # running work may end, then the reset
            return replace(_weighed(verdict, "reset_gpu"), severity=Severity.ERROR)
        return _weighed(verdict, "restart_app")
    return verdict


def _weighed(verdict: Verdict, action: str) -> Verdict:
    severity, usable = _WEIGHT[action]
    return replace(verdict, action=action, severity=SEVERITIES[severity], usable=usable)


def of_sxid(catalog: Catalog, line: SxidLine, version: Version | None) -> Verdict:
    """Return what an NVSwitch line calls for: the driver's word in the line decides over the code."""
    fatal = None if line.tag is None else line.tag == "Fatal"
    carried: Carried = {"fatal": fatal, "tag": line.tag, "link": line.link, "switch": line.switch}
    if line.first:
        carried["first"] = True
    entry = catalog.sxid(line.code, version)
    if entry is None:
        return Verdict(action="notify", severity=Severity.ERROR, usable="unknown", carried=carried)
    verdict = Verdict(
        action=entry.action,
        severity=SEVERITIES[entry.severity],
        usable=entry.usable,
        class_="nvlink",
        mnemonic=entry.mnemonic,
        carried=carried,
    )
    fixed = {"fatal": "Fatal", "nonfatal": "Non-fatal", "correctable": "Correctable"}.get(entry.driver)
    if line.tag in (None, fixed) or entry.driver == "log":
        return verdict
    if line.tag == "Fatal":  # never less than an error, whatever the code is elsewhere
        return verdict if verdict.severity.rank >= Severity.ERROR.rank else replace(verdict, severity=Severity.ERROR)
    mild = verdict.severity if verdict.severity is Severity.INFO else Severity.WARNING
    return replace(verdict, action="notify", severity=mild)
