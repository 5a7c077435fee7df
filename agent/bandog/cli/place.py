"""Which host the command line speaks of: this one, or a tree that the environment names (tests, demo)."""

from __future__ import annotations

import os
from pathlib import Path

from ..host.paths import Paths


def local_paths(config_dir: Path | None = None) -> Paths:
    """Return the host's paths; BANDOG_ETC, BANDOG_STATE and BANDOG_RUN move our three trees, BANDOG_ROOT all."""

    def moved(name: str) -> Path | None:
        value = os.environ.get(name)
        return Path(value) if value else None

    return Paths(
        root=moved("BANDOG_ROOT") or Path("/"),
        etc_dir=config_dir or moved("BANDOG_ETC"),
        state_dir=moved("BANDOG_STATE"),
        run_dir=moved("BANDOG_RUN"),
    )
