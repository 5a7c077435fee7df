"""One constructor per subject type: what a finding is about, as `type:id`.

PCI addresses have one spelling here, `0000:e5:00.0`: a domain of at least four hex digits, lower
case, with function. Xid lines (`0000:e5:00`), NVML (`00000000:E5:00.0`) and sysfs
(`0000:e5:00.0`) each spell it in their own way; this is the only place that knows.
"""

from __future__ import annotations

import re

HOST = "host"
AGENT = "agent"

_PCI = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?\Z")


def pci_address(text: str) -> str:
    """Return the one spelling of a PCI address; raises ValueError if `text` is none."""
    match = _PCI.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no PCI address (expected like 0000:e5:00.0)")
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or 0}".lower()


def pci_order(address: str) -> tuple[int, ...]:
    """Return a key that sorts addresses in the one spelling as PCI counts them; anything else sorts last."""
    match = _PCI.match(address)
    return (1,) if match is None else (0, *(int(part or "0", 16) for part in match.groups()))


def gpu(address: str) -> str:
    """The GPU at a PCI address in any spelling."""
    return f"gpu:{pci_address(address)}"


def nvswitch(address: str) -> str:
    """The NVSwitch at a PCI address in any spelling."""
    return f"nvswitch:{pci_address(address)}"


def pci(address: str) -> str:
    """Any PCI device by its address in any spelling."""
    return f"pci:{pci_address(address)}"


def task(comm: str) -> str:
    """A task by its comm as the kernel prints it (at most 15 bytes, any character)."""
    return f"task:{comm}"


def dimm(place: str) -> str:
    """A memory module by its label or its raw location."""
    return f"dimm:{place}"


def cpu(number: int) -> str:
    """A logical processor."""
    return f"cpu:{number}"


def mount(device: str) -> str:
    """A file system by its device or mount point, as the kernel names it."""
    return f"mount:{device}"


def disk(device: str) -> str:
    """A block device by its kernel name."""
    return f"disk:{device}"


def service(name: str) -> str:
    """A service that bandog looks after, by the name in its file."""
    return f"service:{name}"


def plugin(name: str) -> str:
    """A plugin of ours."""
    return f"plugin:{name}"


def type_of(subject: str) -> str:
    """Return the part before the colon: `gpu` for `gpu:0000:e5:00.0`, `host` for `host`."""
    return subject.split(":", 1)[0]


def id_of(subject: str) -> str:
    """Return the part after the first colon, or "" where there is none."""
    return subject.partition(":")[2]
