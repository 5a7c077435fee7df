"""The linters run as tests, so that one command says whether a change may land."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SHELLS = ("#!/bin/sh", "#!/bin/bash")


def run(*argv: str | Path) -> None:
    """Run a tool in the checkout; fail with what it printed."""
    done = subprocess.run(
        [str(one) for one in argv], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(str(one) for one in argv[:3])} …\n{done.stdout[-6000:]}", pytrace=False)


def shell_scripts() -> list[Path]:
    """Return every file of ours that a shell runs."""
    places = (".ci", "packaging", "debian", "tests")
    files = [file for place in places for file in (TOP / place).rglob("*") if file.is_file()]
    found = []
    for file in files:
        if ".cache" in file.parts or file.suffix in (".pyc", ".gz"):
            continue
        with file.open("rb") as start:
            first = start.readline(64).decode(errors="replace").strip()
        if first.startswith(SHELLS):
            found.append(file)
    return sorted(found)


def test_ruff_finds_nothing() -> None:
    run(BIN / "ruff", "check", "--quiet", ".")


def test_every_file_is_formatted() -> None:
    run(BIN / "ruff", "format", "--check", "--quiet", ".")


def test_the_code_is_typed_strictly() -> None:
    run(BIN / "mypy")


def test_the_lab_is_typed_strictly() -> None:
    run(BIN / "mypy", "--strict", "tests/lab")


def test_words_are_spelled_right() -> None:
    run(BIN / "codespell")


def test_shell_scripts_are_sound() -> None:
    scripts = shell_scripts()
    assert {"run", "build-deb", "bandog.postinst"} <= {one.name for one in scripts}
    run(BIN / "shellcheck", *scripts)
