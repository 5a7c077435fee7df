"""Which GPUs a unit's processes hold: the proof that it was started on the right ones.

NVML tells it, else the device files that are open. What a process was given as CUDA_VISIBLE_DEVICES is only the
explanation: a wrapper script that sets the variable itself is found that way, and named.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from bandog import Look, Site, UnitState, processes, whose

from ._owner import Owner

VARIABLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"/dev/nvidia(\d+)\Z")
_READ = timedelta(seconds=5)
_MOST_ASKED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """`right`: True where the unit holds the wanted cards and no other, False where it holds another, None where
    that is not settled. `why` is for people."""

    right: bool | None
    why: str


def judge(site: Site, owner: Owner, unit: UnitState, look: Look, wanted: Collection[str], visible: str) -> Held:
    """Compare what the unit's processes hold in `look` with the `wanted` addresses.

    `visible` is the value of CUDA_VISIBLE_DEVICES that the unit was started with.
    """
    if all(gpu.holders is not None for gpu in look.gpus):
        return _by_driver(site, owner, look, set(wanted), visible)
    return _by_files(site, owner, unit, look, set(wanted), visible)


def _by_driver(site: Site, owner: Owner, look: Look, wanted: set[str], visible: str) -> Held:
    pids: dict[str, list[int]] = {}
    for gpu in look.gpus:
        own = [one.pid for one in gpu.holders or () if owner.owns(one.pid)]
        if own:
            pids[gpu.address] = own
    others = sorted(set(pids) - wanted)
    if others:
        asked = [pid for address in others for pid in pids[address]]
        return Held(right=False, why=f"it holds {', '.join(others)} as well{_culprit(site, asked, visible)}")
    if set(pids) == wanted:
        return Held(right=True, why=f"holds {', '.join(sorted(wanted))} and no other, as the driver tells")
    return Held(right=None, why=f"it holds {len(pids)} of the {len(wanted)} GPUs")


def _by_files(site: Site, owner: Owner, unit: UnitState, look: Look, wanted: set[str], visible: str) -> Held:
    """CUDA opens the files of cards that it does not use, so that more of them open prove nothing."""
    addresses = {gpu.minor: gpu.address for gpu in look.gpus if gpu.minor is not None}
    opened: set[str] = set()
    pids = sorted(owner.pids)
    for pid in pids:
        task = processes.task_stat(site.paths, pid)
        if task is None or task.state == "D":
            continue
        for path in processes.open_files(site.paths, pid):
            match = _DEVICE.match(path)
            if match is not None and int(match[1]) in addresses:
                opened.add(addresses[int(match[1])])
    if not wanted <= opened:
        return Held(right=None, why=f"it has {len(wanted & opened)} of the {len(wanted)} GPUs open")
    if opened == wanted:
        return Held(right=True, why=f"has {', '.join(sorted(wanted))} open and no other")
    culprit = _culprit(site, pids, visible)
    if culprit:
        return Held(right=False, why=f"it has {', '.join(sorted(opened - wanted))} open as well{culprit}")
    told = {_given(site, pid) for pid in pids[:_MOST_ASKED]}
    if told == {visible}:
        return Held(right=True, why=f"was given {VARIABLE}={visible}, as its environment tells")
    return Held(right=None, why="the driver does not tell which GPUs it holds")


def _culprit(site: Site, pids: Collection[int], visible: str) -> str:
    """Return who was started with another list than ours, "" where nobody is seen to be."""
    for pid in sorted(set(pids))[:_MOST_ASKED]:
        given = _given(site, pid)
        if given is not None and given != visible:
            return (
                f": {whose(site.paths, pid)} was started with {VARIABLE}={given or '(empty)'} in place of {visible}; "
                "what starts it overrides the variable"
            )
    return ""


def _given(site: Site, pid: int) -> str | None:
    """Return a process's CUDA_VISIBLE_DEVICES; None without, and for one that cannot be asked.

    In a child: reading the environment takes the memory lock of the process, and may block with it.
    """
    task = processes.task_stat(site.paths, pid)
    if task is None or task.state == "D":
        return None
    outcome = site.child(["cat", str(site.paths.proc / str(pid) / "environ")], deadline=_READ)
    if not outcome.ok:
        return None
    start = f"{VARIABLE}=".encode()
    for entry in outcome.out.split(b"\0"):
        if entry.startswith(start):
            text = entry[len(start) :][:200].decode("utf-8", "replace")
            return "".join(one if one.isprintable() else "?" for one in text)
    return None
