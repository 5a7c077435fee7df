"""Where things lie on the host; everything that reads a file starts here, so that tests can move the root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The host's trees. `root` prefixes all of them; single ones may be replaced for tests."""

    root: Path = Path("/")
    etc_dir: Path | None = None
    state_dir: Path | None = None
    run_dir: Path | None = None

    def at(self, path: str) -> Path:
        """Return the absolute `path` below the root."""
        return self.root / path.lstrip("/")

    def named(self, place: Path) -> str:
        """Return how the host itself names `place`: without the root where that is above it."""
        return f"/{place.relative_to(self.root)}" if place.is_relative_to(self.root) else str(place)

    @property
    def proc(self) -> Path:
        """procfs."""
        return self.at("/proc")

    @property
    def sys(self) -> Path:
        """sysfs."""
        return self.at("/sys")

    @property
    def dev(self) -> Path:
        """Device nodes."""
        return self.at("/dev")

    @property
    def kmsg(self) -> Path:
        """The kernel's log device."""
        return self.at("/dev/kmsg")

    @property
    def etc(self) -> Path:
        """The operator's configuration."""
        return self.etc_dir or self.at("/etc/bandog")

    @property
    def state(self) -> Path:
        """What must survive a reboot: the database, evidence, the message spool."""
        return self.state_dir or self.at("/var/lib/bandog")

    @property
    def run(self) -> Path:
        """What must survive us but not a reboot: the control socket, environment files."""
        return self.run_dir or self.at("/run/bandog")
