"""The client of the child program: when it is asked, how long it may take, and what is done when it does not answer.

After a round without an answer the driver is left alone for a minute: each call on a GPU with a dead system
processor takes 45 s and prints another Xid. A child that cannot be killed is left behind, and while it is there,
no other one is started, be it ours or that of an agent before us.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from bandog import Answer, Instant, Look, Resident, Site, cgroups, processes, subjects

from .answers import Rubbish, look_of

CHILD = ("-I", "-m", "bandog_plugins.gpu.child")
COMM = "bandog-nvml"
"""What the child calls itself; whoever else of our group bears this name belongs to an agent before us."""
WARM = timedelta(seconds=10)
COLD = timedelta(seconds=22)
"""The patience with the first round of a child, and where persistence mode is off: the driver then initialises each
GPU anew, which takes seconds. With 10 s between rounds and 3 s for ending the child, 30 s are kept either way."""
PAUSE = timedelta(minutes=1)
SAID = "the driver gives no answer"


class Rounds:
    """Asks for rounds. `take` is called by one worker after the other, never by two at once."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, warm: timedelta = WARM, cold: timedelta = COLD
    ) -> None:
        self.rounds = 0
        self.hung_since: Instant | None = None
        self.stuck = False
        self._environment = dict(environment or {})
        self._warm, self._cold = warm, cold
        self._child: Resident | None = None
        self._due: Instant | None = None
        self._failed = False
        self._persistent: bool | None = None
        self._nodes: dict[str, int | None] = {}

    @property
    def persistent(self) -> bool | None:
        """Whether every GPU is in persistence mode, None before the first answer."""
        return self._persistent

    def take(self, site: Site) -> Look | None:
        """Make a round if one is due, and return what came of it; None where none is due.

        Blocks for 25 s at most. While a child is stuck each call says so again, without touching the driver.
        """
        now = site.clock.now()
        if self._child is None:
            self._child = site.resident((sys.executable, *CHILD), env=self._environment)
        if self.stuck:
            if self._still_stuck(site):
                return self._hung(site)
            self.stuck, self._due = False, None
        if self._due is not None and now.since(self._due) < timedelta():
            return self._hung(site) if self.hung_since is not None else None
        return self._round(site, self._child, now)

    def _round(self, site: Site, child: Resident, now: Instant) -> Look:
        if child.pid is None and _orphan(site) is not None:
            return self._unanswered(site, Answer(line=None, timed_out=True, stuck=True), now)
        self.rounds += 1
        question = {"round": self.rounds, "at": _expected(site)}
        cold = child.pid is None or not self._persistent
        answer = child.ask(json.dumps(question).encode(), deadline=self._cold if cold else self._warm)
        if answer.line is None:
            return self._unanswered(site, answer, now)
        try:
            at, number = site.clock.now(), self.rounds
            look = look_of(answer.line, number=number, at=at, numa=lambda address: self._node(site, address))
        except Rubbish as error:
            child.end()
            return self._unanswered(site, Answer(line=None, why=f"it talks rubbish: {error}"), now)
        return self._answered(site, look, now)

    def _answered(self, site: Site, look: Look, now: Instant) -> Look:
        self.hung_since, self.stuck, self._failed, self._due = None, False, False, None
        if look.error:
            self._due = now.plus(PAUSE)
            return replace(look, driver=look.driver or _module_version(site))
        if look.gpus:
            self._persistent = all(one.persistence is not False for one in look.gpus)
            if not self._persistent:
                self._due = now.plus(PAUSE)
        return look

    def _node(self, site: Site, address: str) -> int | None:
        """Return the NUMA node of a slot, None where the host has but one (sysfs-bus-pci, numa_node: -1)."""
        if address not in self._nodes:
            try:
                number = int((site.paths.sys / "bus/pci/devices" / address / "numa_node").read_text("ascii"))
            except (OSError, ValueError):
                number = -1
            self._nodes[address] = number if number >= 0 else None
        return self._nodes[address]

    def _unanswered(self, site: Site, answer: Answer, now: Instant) -> Look:
        if answer.timed_out:
            self.hung_since = self.hung_since or now
            self.stuck = self._still_stuck(site)
            self._due = now.plus(PAUSE)
            return self._hung(site)
        # A child that ended is started again in the next round, but not in each.
        self._due = now.plus(PAUSE) if self._failed else None
        self._failed = True
        return Look(at=site.clock.now(), error=f"the program that asks the driver gave no answer: {answer.why}")

    def _hung(self, site: Site) -> Look:
        at = site.clock.now()
        seconds = int(at.since(self.hung_since or at).total_seconds())
        extra = {"seconds": max(0, seconds), "stuck": self.stuck}
        return Look(at=at, error=SAID, hung=True, driver=_module_version(site), extra=extra)

    def _still_stuck(self, site: Site) -> bool:
        child = self._child
        return child is not None and (child.stuck or _orphan(site) is not None)


def _orphan(site: Site) -> int | None:
    """Return a child that an agent before us has left in D state, by pid."""
    me = os.getpid()
    group = cgroups.control_group(site.paths, me)
    for pid in cgroups.processes_in(site.paths, group or ""):
        task = processes.task_stat(site.paths, pid)
        if task is not None and task.comm == COMM and task.state == "D" and task.ppid != me:
            return pid
    return None


def _expected(site: Site) -> list[str]:
    """Return the addresses at which a GPU should be: what the driver is bound to, and where cards were seen before."""
    slots = {one.slot for one in site.gpus.known() if one.expected}
    for place in (site.paths.proc / "driver/nvidia/gpus", site.paths.sys / "bus/pci/drivers/nvidia"):
        try:
            names = [entry.name for entry in place.iterdir()]
        except OSError:
            continue
        for name in names:
            with suppress(ValueError):  # what else lies there: bind, module, new_id …
                slots.add(subjects.pci_address(name))
    return sorted(slots, key=subjects.pci_order)


def _module_version(site: Site) -> str:
    """Return the version of the kernel module that is loaded, "" where none is."""
    try:
        return (site.paths.sys / "module/nvidia/version").read_text("ascii", "replace").strip()
    except OSError:
        return ""
