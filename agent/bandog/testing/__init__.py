"""The public test kit: a host, a clock, a PID 1 and a site that a test scripts, and `feed`.

Plugin authors use it as bandog's own tests do: real objects over a fake host, nothing patched.
"""

from __future__ import annotations

from .clock import BOOT_ID, FakeClock, settle
from .feeding import feed, kernel_records
from .host import FakeHost
from .services import FakeServices
from .site import FakeResident, FakeSite, Told
from .systemd import FakeSystemd, Job, Scripted

__all__ = [
    "BOOT_ID",
    "FakeClock",
    "FakeHost",
    "FakeResident",
    "FakeServices",
    "FakeSite",
    "FakeSystemd",
    "Job",
    "Scripted",
    "Told",
    "feed",
    "kernel_records",
    "settle",
]
