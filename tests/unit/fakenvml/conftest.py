"""The fake driver library, compiled once, and four GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvml_driver import Driver

import fakenvml

CACHE = Path(__file__).parents[3] / ".cache/fakenvml"


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder with libnvidia-ml.so.1, for LD_LIBRARY_PATH."""
    return fakenvml.build(CACHE)


@pytest.fixture
def driver(tmp_path: Path, library: Path) -> Driver:
    return Driver(fakenvml.State(tmp_path / "state", 4), library)
