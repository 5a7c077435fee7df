"""The kernel's side of the log, made to print fast: a record is stamped and handed over at once."""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Self

# `<linux/socket.h>`: beyond net.core.wmem_max, for root only.
_SO_SNDBUFFORCE = 32
# What the socket holds stands for the kernel's buffer. A short record counts 768 bytes in it (its
# sk_buff and page), and the kernel doubles what is asked: about 1,600 records, as 128 KiB of printk hold.
_BUFFER = 600 * 1024

OTHERS = tuple(
    text.encode()
    for text in (
        "usb 1-1.4: new high-speed USB device number 7 using xhci_hcd",
        "IPv6: ADDRCONF(NETDEV_CHANGE): veth3fa91c: link becomes ready",
        "docker0: port 3(veth3fa91c) entered forwarding state",
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
        'audit: type=1400 audit(1700000000.123:88): apparmor="STATUS" operation="profile_load" name="docker-default"',
        "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
        "TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:8000. Sending cookies.",
        "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged",
        "nvidia-nvswitch0: open (major=510)",
        "overlayfs: upperdir is in-use as upperdir/workdir of another mount, accessing files is undefined.",
        "CPU17: Core temperature/speed normal",
        "nfs: server 10.0.0.4 not responding, still trying",
    )
)


def subjects() -> Iterator[str]:
    """Yield GPU addresses, each once."""
    for domain, bus, device in itertools.product(range(0x100), range(1, 0x100), range(0x20)):
        yield f"{domain:04x}:{bus:02x}:{device:02x}"


def xid(address: str) -> bytes:
    """Return the driver's line for a contained ECC error."""
    return f"NVRM: Xid (PCI:{address}): 94, Contained: SM (0x1). RST: No, D-RST: No".encode()


class Printk:
    """Prints records into a packet socket; `reader` is the daemon's end."""

    def __init__(self) -> None:
        self._writer, self.reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._writer.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER)
        except PermissionError:
            self._writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self.reader.close()

    def print(self, text: bytes) -> int:
        """Print one line; returns its stamp in microseconds of CLOCK_MONOTONIC."""
        stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._writer.send(b"4,%d,%d,-;%s\n" % (self._sequence, stamp, text))
        self._sequence += 1
        return stamp

    def others(self, count: int) -> None:
        """Print `count` lines that nobody wants."""
        for text in random.choices(OTHERS, k=count):
            self.print(text)


class Ring(Printk):
    """A buffer that overwrites its oldest records while the reader does not keep up, as printk's does."""

    def __init__(self, records: int) -> None:
        super().__init__()
        self._writer.setblocking(False)
        self._held: deque[tuple[int, bytes, bytes]] = deque()
        self._records = records
        self.overwritten: list[bytes] = []

    def print(self, text: bytes) -> int:
        """Print one line; when the buffer is full the oldest record is gone."""
        stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._held.append((self._sequence, b"6,%d,%d,-;%s\n" % (self._sequence, stamp, text), text))
        self._sequence += 1
        if len(self._held) > self._records:
            self.overwritten.append(self._held.popleft()[2])
        return stamp

    def offer(self) -> bool:
        """Let the reader have what it takes now; False while something is left."""
        try:
            while self._held:
                self._writer.send(self._held[0][1])
                self._held.popleft()
        except BlockingIOError:
            return False
        return True
