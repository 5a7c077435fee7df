"""A fake `libcuda.so.1`, so that the preflight's trial of a card runs unmodified; cuda.c says what it obeys."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def build(folder: Path) -> Path:
    """Compile the library into a folder, for LD_LIBRARY_PATH, and return it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed for the fake CUDA library")
    source = Path(__file__).with_name("cuda.c")
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
         str(folder / "libcuda.so.1"), str(source)],
        check=True, timeout=60,
    )  # fmt: skip
    return folder
