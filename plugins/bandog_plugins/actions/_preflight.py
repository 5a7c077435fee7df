"""Before a service is started on other GPUs: a fresh look at all of them, and a trial of those that it is to get.

Each is a child program with an end, as a call into a sick driver may never return. After one that could not even be
killed no other is started: it is still there, in D state.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bandog import ChildOutcome, Look, Site, cgroups, processes

from ..gpu.answers import Rubbish, look_of

CHILD = ("-I", "-m", "bandog_plugins.gpu.preflight")
COMM = "bandog-check"
LOOK = timedelta(seconds=25)
TRIAL = timedelta(seconds=60)
HANGS = "the driver gives no answer"


class Silent(Exception):
    """The driver, or one card, did not answer as it should; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What trying the cards with CUDA came to.

    `order` is CUDA's own, None where its library is not there; `remark` says what could not be tried.
    """

    order: tuple[str, ...] | None = None
    remark: str = ""


def look(site: Site, environment: Mapping[str, str], *, deadline: timedelta = LOOK) -> Look:
    """Take a look at the GPUs now, hand it to the inventory and return it. Raises Silent."""
    slots = [card.slot for card in site.gpus.known() if card.expected]
    outcome = _run(site, {"at": slots}, environment, deadline)
    answers = [one["nvml"] for one in _lines(outcome) if "nvml" in one]
    if not answers:
        raise Silent(_end(outcome, deadline))
    try:
        fresh = look_of(json.dumps(answers[0]).encode(), number=1, at=site.clock.now(), numa=lambda at: _node(site, at))
    except Rubbish as error:
        raise Silent(f"the program that asks the driver talks rubbish: {error}") from error
    site.gpus.take(fresh)
    if fresh.error:
        differ = "driver and library differ in their versions: " if fresh.mismatch else ""
        raise Silent(f"the driver refuses: {differ}{fresh.error}")
    if fresh.mismatch:
        raise Silent(f"driver and library differ: kernel module {fresh.driver}, library {fresh.library}")
    return fresh


def trial(site: Site, addresses: Iterable[str], environment: Mapping[str, str]) -> Trial:
    """Let each card compute for a moment, where CUDA is installed. Raises Silent where one cannot."""
    outcome = _run(site, {"cuda": list(addresses)}, environment, TRIAL)
    order, where, full = None, "", []
    for one in _lines(outcome):
        if "none" in one:
            return Trial(remark="CUDA is not installed here, so that no card was tried with it")
        if "failed" in one:
            raise Silent(f"{one['failed'] or 'CUDA'} does not compute: {one.get('why', '')}")
        if "order" in one:
            order = tuple(str(address) for address in one["order"])
        where = str(one.get("trying", where))
        if "full" in one:
            full.append(str(one["full"]))
        if "done" in one:
            remark = f"{', '.join(full)} could not be tried: its memory is taken" if full else ""
            return Trial(order=order, remark=remark)
    if outcome.code == -9 and not outcome.timed_out:
        # The kernel takes our children first when memory is short; that says nothing of a card.
        return Trial(order=order, remark="the trial with CUDA was killed, so that not every card was tried")
    at = f" on {where}" if where else ""
    raise Silent(f"the trial with CUDA{at}: {_end(outcome, TRIAL)}")


def _run(site: Site, question: Mapping[str, Any], environment: Mapping[str, str], deadline: timedelta) -> ChildOutcome:
    if _stuck(site):
        raise Silent(f"{HANGS}: a program that asked it earlier cannot be killed")
    line = json.dumps(question).encode() + b"\n"
    return site.child((sys.executable, *CHILD), deadline=deadline, stdin=line, env=dict(environment))


def _stuck(site: Site) -> bool:
    """Return whether a child of ours, or of an agent before us, sits in D state for ever."""
    group = cgroups.control_group(site.paths, os.getpid())
    for pid in cgroups.processes_in(site.paths, group or ""):
        task = processes.task_stat(site.paths, pid)
        if task is not None and task.comm == COMM and task.state == "D":
            return True
    return False


def _lines(outcome: ChildOutcome) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for line in outcome.out.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found


def _end(outcome: ChildOutcome, deadline: timedelta) -> str:
    if outcome.stuck:
        return f"{HANGS}, and the program that asked it cannot be killed"
    if outcome.timed_out:
        return f"{HANGS} within {deadline.total_seconds():g} s"
    last = outcome.err.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"the program that asks the driver ended with {outcome.code}" + "".join(f": {one[:200]}" for one in last)


def _node(site: Site, address: str) -> int | None:
    """Return the NUMA node of a slot, None where the host has but one (sysfs-bus-pci, numa_node: -1)."""
    try:
        number = int((site.paths.sys / "bus/pci/devices" / address / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None
