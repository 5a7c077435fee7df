"""The fixtures of the GPU probe's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_bench import Bench

import fakenvml


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the fake driver library, compiled once."""
    return fakenvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def bench(tmp_path: Path, nvml: Path) -> Iterator[Bench]:
    """Four GPUs that are well, and the probe over them."""
    one = Bench(tmp_path, nvml)
    yield one
    one.site.close()
