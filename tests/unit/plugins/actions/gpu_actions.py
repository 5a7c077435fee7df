"""A bench with four GPUs: what the child programs say of them follows one table, and the unit's processes hold some."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from action_bench import CGROUP, UNIT, Bench

from bandog import ChildOutcome, Request, overrides

BUSES = ("17", "3d", "65", "e5")
E5 = "0000:e5:00.0"
GIB = 1 << 30


def address(bus: str) -> str:
    return f"0000:{bus}:00.0"


@dataclass
class GpuBench(Bench):
    """`cards` maps an address to what NVML's child says of it; the unit's one worker, pid 5100, `holds` some.

    `cuda` are the addresses as CUDA lists them, None without its library; `ill` maps one to why it does not compute.
    """

    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    holds: list[str] = field(default_factory=list)
    follows: bool = True
    cuda: list[str] | None = None
    ill: dict[str, str] = field(default_factory=dict)
    preflight: ChildOutcome | None = None
    driver: dict[str, Any] = field(default_factory=dict)
    environ: str = ""
    rounds: int = 0

    def fill(self) -> None:
        """Four cards that are well, all of them held by the unit's worker."""
        for place, bus in enumerate(BUSES):
            self.cards[address(bus)] = {"uuid": f"GPU-{bus}", "serial": f"S{bus}", "minor": place, "holders": []}
        self.holds = list(self.cards)
        self.systemd.change(UNIT, environment_files=(str(overrides.path_of(self.paths.run, UNIT)),))
        self.host.task(5100, "VLLM::Worker_TP", cgroup=CGROUP)
        self.host.cgroup(CGROUP, 5100)
        self.systemd.on_job = lambda _: self.started()

    def started(self) -> None:
        """The unit's worker takes what its environment file says, as a program that obeys does."""
        self.host.task(5100, "VLLM::Worker_TP", cgroup=CGROUP)
        given = overrides.in_force(self.paths.run, UNIT)
        if self.follows and given is not None and given.gpus:
            self.holds = list(given.gpus)

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        if "bandog_plugins.gpu.preflight" in argv:
            self.children.append(tuple(argv))
            return self.preflight or self._answer(json.loads(stdin))
        if argv[0] == "cat" and str(argv[1]).endswith("/environ"):
            return ChildOutcome(code=0, out=f"A=b\0CUDA_VISIBLE_DEVICES={self.environ}\0".encode())
        return super().child(argv, deadline=deadline, stdin=stdin, limit=limit, env=env)

    def _answer(self, question: Mapping[str, Any]) -> ChildOutcome:
        lines: list[dict[str, Any]] = []
        if "at" in question:
            self.rounds += 1
            lines.append({"nvml": self.nvml()})
        if "cuda" in question:
            lines += self._tried(question["cuda"])
        lines.append({"done": True})
        return ChildOutcome(code=0, out="".join(json.dumps(line) + "\n" for line in lines).encode())

    def nvml(self) -> dict[str, Any]:
        """What a round says."""
        gpus = []
        for at, card in self.cards.items():
            own = [{"pid": 5100, "memory": GIB}] if at in self.holds and not card.get("lost") else []
            told = {"address": at, **card}
            if card.get("holders") is not None:
                told["holders"] = [*own, *card["holders"]]
            else:
                told.pop("holders", None)
            gpus.append(told)
        versions = {"driver": "570.86.15", "library": "12.570.86.15", "cuda": 12080, "disk": "570.86.15"}
        return {"round": 1, "gpus": gpus, "unplaced": [], **versions, **self.driver}

    def _tried(self, wanted: list[str]) -> list[dict[str, Any]]:
        if self.cuda is None:
            return [{"none": "libcuda.so.1: cannot open shared object file"}]
        lines: list[dict[str, Any]] = [{"trying": ""}, {"order": self.cuda}]
        for one in wanted:
            lines += [{"trying": one}]
            lines += [{"failed": one, "why": self.ill[one]}] if one in self.ill else [{"ok": one}]
        return lines

    def relaunch(self, **fields: Any) -> Request:
        """Return a request for a relaunch without the card of the finding."""
        return self.request("relaunch", **{"with_": {"without": f"gpu:{E5}"}, **fields})
