"""Lines without a code that tell of a GPU or driver that cannot be used.

The same loss can show as Xid 79 or as one of these, depending on who touched the GPU first
(`src/nvidia/arch/nvalloc/unix/src/osinit.c`, `osapi.c`, `kernel-open/nvidia/nv.c` of
NVIDIA/open-gpu-kernel-modules). A line with an address is about that GPU; without one it can only be
about the driver on this host.
"""

from __future__ import annotations

from typing import NamedTuple

from bandog import Severity


class Loss(NamedTuple):
    """What one of `lines.OtherLine.name` means. `repeats`: each driver call prints it again."""

    severity: Severity
    action: str
    repeats: bool = False


LOSSES = {
    "off-bus": Loss(Severity.CRITICAL, "reboot"),
    "off-bus-probe": Loss(Severity.CRITICAL, "reboot"),
    "init-failed": Loss(Severity.CRITICAL, "contact_support", repeats=True),
    "no-power": Loss(Severity.CRITICAL, "inspect_hardware", repeats=True),
    "probe-failed": Loss(Severity.ERROR, "notify"),
    "gsp-sanity": Loss(Severity.ERROR, "reset_gpu", repeats=True),
    "uvm-fatal": Loss(Severity.CRITICAL, "reboot"),
}

MEANINGS = {
    "off-bus": "The GPU no longer answers over PCI Express, as with Xid 79. A reset cannot reach it; it takes a "
    "reboot, and if that does not bring it back a power cycle and a look at seating and power.",
    "off-bus-probe": "When the driver was loaded the GPU was on the bus but did not answer: lost, as with Xid 79.",
    "init-failed": "The driver could not initialise the GPU, so it cannot be used. Each nvidia-smi prints this again.",
    "no-power": "The GPU reports that its power cables are not connected.",
    "probe-failed": "The driver could not take over some of its devices; compare the GPUs present with those expected.",
    "gsp-sanity": "The GPU's system processor (GSP) does not answer and no Xid 119 is printed for it. The number is "
    "the driver's own, not the index that nvidia-smi shows.",
    "uvm-fatal": "The unified-memory driver met a fatal error and asks for a reboot; every GPU of the host then "
    "prints Xid 154, which does not make those GPUs suspects.",
}
