"""The `xid` detector: NVIDIA's errors in the kernel log, one finding a line.

It keeps nothing but a small note on each GPU, so a line gives the same finding whatever stood before
it; the note only adds a serial number and tells which lines are one event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from bandog import Fact, Facts, Finding, Host, Instant, LogDetector, Record, Severity, hookimpl, subjects

from ..xid import words
from ..xid.catalog import Catalog, Version
from ..xid.facts import DRIVER_FACTS, LOSS_FACTS, SXID_FACTS, XID_FACTS
from ..xid.lines import LONGEST, OtherLine, SxidLine, XidLine, parse
from ..xid.losses import LOSSES
from ..xid.nvlink import LINK_CODES
from ..xid.verdict import Verdict, of_sxid, of_xid

LOST_CODES = frozenset({79, 110})
"""The codes beside which the driver prints that the GPU has fallen off the bus."""
CHANNEL_CODES = frozenset({13, 31, 32, 43, 45, 69, 109})
"""Errors of one process's channel: two processes hit at once are two events."""
FOLLOWERS = frozenset({43, 45, 171, 172})
"""Effects and details of another error on the same GPU; they never open an incident beside it."""
STATE_CODES = frozenset({119, 175})
"""A state until the GPU is reset: each driver call prints it again, then only 1 in 30 does."""

BURST = timedelta(seconds=5)  # lines of one fault, measured on a large cluster (arXiv:2503.11901)
STATE = timedelta(minutes=10)
PROBE_MESSAGE = timedelta(seconds=1)  # three printed lines of one text
MOST_GPUS = 64  # per host; the note on the one seen longest ago is dropped


class _Gpu:
    """What is remembered of one GPU: who it is, and when it was last said to be lost, and how."""

    __slots__ = ("code_at", "line_at", "serial", "uuid")

    def __init__(self) -> None:
        self.uuid: str | None = None
        self.serial: str | None = None
        self.code_at: Instant | None = None
        self.line_at: Instant | None = None


class XidDetector(LogDetector):
    """States Xids, SXids and losses of a GPU without a code."""

    name: ClassVar[str] = "xid"
    emits: ClassVar[Mapping[str, Facts]] = {
        "nvidia.xid": XID_FACTS,
        "nvidia.sxid": SXID_FACTS,
        "gpu.lost": LOSS_FACTS,
        "gpu.driver-fault": DRIVER_FACTS,
    }
    needles: ClassVar[tuple[bytes, ...]] = (b"NVRM: ", b"Xid (")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._catalog = Catalog()
        self._version: Version | None = None
        self._gpus: OrderedDict[str, _Gpu] = OrderedDict()
        self._named: str | None = None  # the GPU that the last UUID line named
        self._probed: tuple[str, Record] | None = None  # the first line of a probe message in three lines

    def unsupported(self, host: Host) -> str | None:
        """Learn the driver's version, which decides what some numbers mean; works without a driver too."""
        try:
            self._version = Version.parse((host.paths.sys / "module/nvidia/version").read_text(encoding="ascii"))
        except (OSError, ValueError):
            self._version = None  # not loaded yet; it names its version in the log when it is
        return None

    def feed(self, record: Record) -> Iterable[Finding]:
        """Return the finding of one record, if it is a line of the driver from the kernel itself."""
        if not record.kernel:
            return ()
        line = parse(record.text)
        if line is None:
            return ()
        if isinstance(line, XidLine):
            return (self._xid(record, line),)
        if isinstance(line, SxidLine):
            return () if line.detail else (self._sxid(record, line),)
        finding = self._other(record, line)
        return () if finding is None else (finding,)

    def meaning(self, finding: Finding) -> str:
        """Return what a finding of this detector means, in words for people."""
        code = finding.facts.get("xid", finding.facts.get("sxid"))
        matters = (
            self._version is None
            and isinstance(code, int)
            and self._catalog.renumbered(code, switch="sxid" in finding.facts)
        )
        return words.meaning(finding, version_matters=matters)

    def _xid(self, record: Record, line: XidLine) -> Finding:
        verdict = of_xid(self._catalog, line.code, line.message, self._version)
        subject = subjects.gpu(line.pci)
        recovered = line.code == 154 and verdict.carried.get("recovery_action") == 0
        facts: dict[str, Fact | None] = {
            "xid": line.code,
            "text": line.message.strip(),
            "pid": line.pid,
            "process": line.name,
            "gi": line.gi,
            "ci": line.ci,
            **_judged(verdict),
        }
        if line.glued:
            return _glued(record, "nvidia.xid", subject, facts)
        lost = line.code in LOST_CODES
        return Finding.of(
            record,
            kind="nvidia.xid",
            subject=subject,
            severity=verdict.severity,
            facts=facts,
            raised=not recovered,
            burst=_burst(line, verdict),
            window=STATE if line.code in STATE_CODES else BURST,
            companion=line.code in FOLLOWERS or (lost and self._joins_line(subject, record.at)),
            aspect="recovery" if line.code == 154 else "",  # "None" takes back the advice, not the fault
        )

    def _sxid(self, record: Record, line: SxidLine) -> Finding:
        verdict = of_sxid(self._catalog, line, self._version)
        subject = subjects.nvswitch(line.pci)
        facts: dict[str, Fact | None] = {"sxid": line.code, "text": line.text, **_judged(verdict)}
        if line.glued:
            return _glued(record, "nvidia.sxid", subject, facts)
        return Finding.of(
            record,
            kind="nvidia.sxid",
            subject=subject,
            severity=verdict.severity,
            facts=facts,
            burst=f"{line.code}/{line.link}",
            window=BURST,
        )

    def _other(self, record: Record, line: OtherLine) -> Finding | None:
        groups = line.groups
        if line.name in LOSSES:
            self._probed = None
            return self._loss(record, line.name, groups, glued=line.glued)
        if line.glued:
            return None
        if line.name == "driver-version":
            self._version = Version.parse(groups["version"])
        elif line.name == "uuid":
            self._named = subjects.gpu(groups["pci"])
            self._gpu(self._named).uuid = groups["uuid"]
        elif line.name == "serial":
            self._gpu(subjects.gpu(groups["pci"])).serial = groups["serial"]
        elif line.name == "board-serial":
            if self._named is not None and groups.get("serial"):
                self._gpu(self._named).serial = groups["serial"]
            self._named = None
        elif line.name == "off-bus-probe-head":
            self._probed = (groups["pci"], record)
        elif line.name == "off-bus-probe-tail":
            return self._probe_tail(record)
        return None

    def _probe_tail(self, record: Record) -> Finding | None:
        """Close a probe message whose first line, which has the address, came as a record of its own."""
        probed, self._probed = self._probed, None
        if probed is None or not _near(probed[1].at, record.at, PROBE_MESSAGE):
            return None
        pci, head = probed
        return self._loss(head, "off-bus-probe", {"pci": pci}, glued=False)

    def _loss(self, record: Record, reason: str, groups: Mapping[str, str], *, glued: bool) -> Finding:
        loss = LOSSES[reason]
        facts: dict[str, Fact | None] = {
            "reason": reason,
            "text": record.text[:LONGEST].strip(),
            "action": loss.action,
            "status": groups.get("status"),
            **{name: int(groups[name]) for name in ("minor", "count", "instance") if name in groups},
        }
        if "pci" not in groups:
            kind, subject = "gpu.driver-fault", subjects.HOST
        else:
            kind, subject = "gpu.lost", subjects.gpu(groups["pci"])
        if glued:
            return _glued(record, kind, subject, facts)
        companion = False
        if kind == "gpu.lost":
            gpu = self._gpu(subject)
            facts.update(uuid=gpu.uuid, serial=gpu.serial)
            companion = _near(gpu.code_at, record.at, BURST)
            gpu.line_at = record.at
        return Finding.of(
            record,
            kind=kind,
            subject=subject,
            severity=loss.severity,
            facts=facts,
            burst=reason,
            window=STATE if loss.repeats else BURST,
            companion=companion,
        )

    def _joins_line(self, subject: str, at: Instant) -> bool:
        """Note a 79 or 110, and return whether the line that the driver prints beside it came first.

        Only these two codes merge with that line: a loss that follows a harmless 31 is a loss.
        """
        gpu = self._gpu(subject)
        gpu.code_at = at
        return _near(gpu.line_at, at, BURST)

    def _gpu(self, subject: str) -> _Gpu:
        gpu = self._gpus.setdefault(subject, _Gpu())
        self._gpus.move_to_end(subject)
        if len(self._gpus) > MOST_GPUS:
            self._gpus.popitem(last=False)
        return gpu


def _judged(verdict: Verdict) -> dict[str, Fact | None]:
    return {
        **verdict.carried,
        "action": verdict.action,
        "class": verdict.class_,
        "usable": verdict.usable,
        "mnemonic": verdict.mnemonic,
    }


def _burst(line: XidLine, verdict: Verdict) -> str:
    """Return what tells this event from others of the GPU: lines of one burst are one event."""
    if line.code in CHANNEL_CODES:
        return f"{line.code}/{line.pid}"
    if line.code in LINK_CODES:
        return f"{line.code}/{verdict.carried.get('link')}"
    if line.code == 154:
        return f"154/{verdict.carried.get('recovery_action')}"
    return str(line.code)


def _glued(record: Record, kind: str, subject: str, facts: Mapping[str, Fact | None]) -> Finding:
    """State fault text inside somebody else's record: a warning that changes nothing that we remember."""
    return Finding.of(
        record,
        kind=kind,
        subject=subject,
        severity=Severity.WARNING,
        facts={**facts, "glued": True},
        burst="glued",
    )


def _near(earlier: Instant | None, later: Instant, within: timedelta) -> bool:
    if earlier is None or earlier.boot_id != later.boot_id:
        return False
    return abs(later.boottime - earlier.boottime) <= within


@hookimpl
def register_detectors(register: Callable[[type[LogDetector]], None]) -> None:
    """Offer the detector."""
    register(XidDetector)
