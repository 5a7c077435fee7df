"""Builds the packages and the images, boots a machine of each release, and runs the scenarios.

python -m tests.lab [--release NAME]... [--only WORDS] [--keep-debs] [--all]
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import cases
from .images import PROJECT, RELEASES, image, ssh_key
from .lab import Lab
from .machine import Machine
from .scenario import play

SUFFIX = {"bookworm": "+deb12u1", "trixie": "+deb13u1"}


def _stage(began: float, text: str) -> None:
    print(f"       {time.monotonic() - began:6.1f} s  {text}", flush=True)


def _package(release: str, *, keep: bool) -> Path:
    found = sorted((PROJECT / "dist").glob(f"bandog_*{SUFFIX[release]}_*.deb"))
    if keep and found:
        return found[-1]
    done = subprocess.run(
        [str(PROJECT / "packaging/build-deb"), release], check=True, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout.rstrip())
    return PROJECT / done.stdout.splitlines()[-1]


def _play_on(release: str, *, only: str, keep: bool) -> tuple[int, list[str]]:
    began = time.monotonic()
    deb = _package(release, keep=keep)
    _stage(began, f"{release}: .deb built, lintian passed")
    began = time.monotonic()
    disk = image(release)
    _stage(began, f"{release}: image")
    lab = Lab(Machine(disk), deb)
    try:
        _stage(time.monotonic() - lab.machine.boot(), f"{release}: booted")
        return play(lab, only=only)
    finally:
        lab.close()


def main() -> int:
    """Run the lab; 0 if every scenario passed."""
    arguments = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    arguments.add_argument("--release", action="append", choices=RELEASES, help="only this release")
    arguments.add_argument("--only", default="", help="only scenarios with these words, and the smoke ones")
    arguments.add_argument("--keep-debs", action="store_true", help="do not build a .deb that is in dist/")
    arguments.add_argument("--all", action="store_true", help="the long scenarios too")
    chosen = arguments.parse_args()
    *first, last = cases.ORDER
    for name in (*first, *(cases.LONG if chosen.all else ()), last):
        importlib.import_module(f"{cases.__name__}.{name}")
    began = time.monotonic()
    ssh_key()
    releases = chosen.release or RELEASES
    # Side by side: much of a scenario is waiting.
    with ThreadPoolExecutor(len(releases)) as side_by_side:
        work = {
            release: side_by_side.submit(_play_on, release, only=chosen.only, keep=chosen.keep_debs)
            for release in releases
        }
    passed, failed = 0, []
    for release, done in work.items():
        error = done.exception()
        if error is not None:
            print("".join(traceback.format_exception(error)))
            failed.append(f"{release}: {error}")
        else:
            count, wrong = done.result()
            passed += count
            failed += wrong
    for name in failed:
        print(f"FAILED {name}")
    print(f"lab: {time.monotonic() - began:.0f} s")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
