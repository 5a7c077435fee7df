"""Builds the packages and the images, boots the machines, and runs the scenarios.

python -m tests.lab [--on MACHINE]... [--only WORDS] [--keep-debs]
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from . import cases
from .images import PROJECT, Image, image, ssh_key
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


def _prepared(release: str, *, keep: bool) -> tuple[Path, Image]:
    began = time.monotonic()
    deb = _package(release, keep=keep)
    _stage(began, f"{release}: .deb built, lintian passed")
    began = time.monotonic()
    disk = image(release)
    _stage(began, f"{release}: image")
    return deb, disk


def _play_on(berth: cases.Berth, prepared: Future[tuple[Path, Image]], *, only: str) -> tuple[int, list[str]]:
    deb, disk = prepared.result()
    lab = Lab(Machine(disk, name=berth.name), deb)
    try:
        _stage(time.monotonic() - lab.machine.boot(), f"{berth.name}: booted")
        return play(lab, berth, only=only)
    finally:
        lab.close()


def main() -> int:
    """Run the lab; 0 if every scenario passed."""
    arguments = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    arguments.add_argument("--on", action="append", choices=[one.name for one in cases.BERTHS], help="only there")
    arguments.add_argument("--only", default="", help="only scenarios with these words, and the smoke ones")
    arguments.add_argument("--keep-debs", action="store_true", help="do not build a .deb that is in dist/")
    chosen = arguments.parse_args()
    berths = [one for one in cases.BERTHS if not chosen.on or one.name in chosen.on]
    for name in dict.fromkeys(name for one in berths for name in one.modules):
        importlib.import_module(f"{cases.__name__}.{name}")
    began = time.monotonic()
    ssh_key()
    # Side by side: much of a scenario is waiting.
    with ThreadPoolExecutor(2 * len(berths)) as side_by_side:
        ready = {
            release: side_by_side.submit(_prepared, release, keep=chosen.keep_debs)
            for release in dict.fromkeys(one.release for one in berths)
        }
        work = {one.name: side_by_side.submit(_play_on, one, ready[one.release], only=chosen.only) for one in berths}
    passed, failed = 0, []
    for name, done in work.items():
        error = done.exception()
        if error is not None:
            print("".join(traceback.format_exception(error)))
            failed.append(f"{name}: {error}")
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
