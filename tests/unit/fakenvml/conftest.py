"""The fake driver library, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

import fakenvml

CACHE = Path(__file__).parents[3] / ".cache/fakenvml"


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder with libnvidia-ml.so.1, for LD_LIBRARY_PATH."""
    return fakenvml.build(CACHE)
