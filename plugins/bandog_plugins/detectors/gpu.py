"""The GPUs of this host as their driver tells of them: who is there, who is lost, what they ask for.

The kernel's log is the first source (`xid`); this is the cross-check, and the only one that notices a card that is
not there, a driver that hangs and rows that wait for a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from bandog import Facts, Finding, Host, LogDetector, Options, Probe, Site, Unknown, hookimpl

from ..gpu.judge import EMITS, Judge
from ..gpu.rounds import Rounds

LIBRARY = b"libnvidia-ml.so.1"


class NotTold(Exception):
    """The driver could not be asked, or refused: what was known of the GPUs stays as it is."""


class GpuOptions(Options):
    """`environment` of the program that asks the driver: `LD_LIBRARY_PATH` where the driver's libraries lie in a
    folder that the loader does not search, as with a driver in a container."""

    environment: Mapping[str, str] = Field(default_factory=dict)


class Gpu(Probe):
    """Looks every 10 s, and once a minute where persistence mode is off or the driver did not answer."""

    name = "gpu"
    Options = GpuOptions
    emits: ClassVar[Mapping[str, Facts]] = EMITS
    every = timedelta(seconds=10)
    deadline = timedelta(seconds=28)
    """A round takes 25 s at most, the ending of its child included."""
    options: GpuOptions

    def __init__(self, options: object = None, rounds: Rounds | None = None) -> None:
        super().__init__(options)
        self._rounds = rounds or Rounds(self.options.environment)
        self._judge = Judge()
        self._refused = ""

    def unsupported(self, host: Host) -> str | None:
        """Return why there is nothing to ask: no driver is loaded and no library of one is installed.

        The library decides as well, because at boot we may be earlier than the driver.
        """
        if self.options.environment.get("LD_LIBRARY_PATH") or (host.paths.proc / "driver/nvidia").is_dir():
            return None
        try:
            return None if LIBRARY in host.paths.at("/etc/ld.so.cache").read_bytes() else "no NVIDIA driver"
        except OSError:
            return "no NVIDIA driver"

    def poll(self, site: Site) -> Iterable[Finding | Unknown]:
        """Make a round if one is due, hand the look to the inventory and say what it means.

        Raises NotTold where the driver refused and did not merely hang, so that a probe that stays blind is told.
        """
        look = self._rounds.take(site)
        if look is None:
            if self._refused:
                raise NotTold(self._refused)
            return [Unknown(kind=kind, why="the driver is asked once a minute") for kind in EMITS]
        site.gpus.take(look)
        self._refused = "" if look.hung or look.mismatch else look.error
        if self._refused:
            raise NotTold(self._refused)
        return self._judge.take(look, site.gpus.known())


@hookimpl
def register_detectors(register: Callable[[type[LogDetector] | type[Probe]], None]) -> None:
    """Register the probe."""
    register(Gpu)
