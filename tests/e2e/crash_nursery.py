"""A program for `test_crash`: forks one small agent after another and has each die in the middle.

The agent is the real store, ledger and executor around an action that notes every call in a file.
It is forked, not started, so that hundreds of deaths cost seconds. Usage: STATE KIND ROUNDS SEED;
KIND is `first` (SIGKILL as the first statement of `run`), `after` (right after the act) or `random`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from bandog import Action, Proof, Request, Result, Site
from bandog.domain.budgets import Ledger, Limits
from bandog.domain.policy import Rate
from bandog.host.clock import SystemClock
from bandog.host.paths import Paths
from bandog.runtime.admission import BUDGETS_KEY
from bandog.runtime.executor import Executor
from bandog.runtime.workers import Workers
from bandog.services.registry import Service
from bandog.store import How, Store
from bandog.testing import FakeHost, FakeServices, FakeSite

MANY = Rate(count=100_000, per=timedelta(days=1))
SOON = timedelta(seconds=20)


class Deadly(Action):
    """Notes each call, then dies if it is told to."""

    name = "restart"
    proof_every = timedelta(milliseconds=5)

    def __init__(self, notes: Path, kind: str) -> None:
        super().__init__()
        self._notes = notes
        self._kind = kind

    def run(self, request: Request, site: Site) -> Result:
        """Count the call on the disk, beyond any buffer of ours."""
        note(self._notes, f"run {request.id}")
        if self._kind == "first":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002)  # The act takes time, so that death comes in the middle of it too.
        note(self._notes, f"act {request.id}")
        if self._kind == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return Result.done("restarted")

    def prove(self, request: Request, result: Result, site: Site) -> Proof:
        """Say that it helped, and whether the act had been interrupted."""
        note(self._notes, f"proof {request.id} {'interrupted' if result.facts.get('interrupted') else 'known'}")
        return Proof.proved()


def note(file: Path, line: str) -> None:
    """Append one line in one write."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, f"{line}\n".encode())
    os.close(number)


async def agent(state: Path, kind: str, number: int | None) -> None:
    """Resume what is open, take one more request, end when all have ended."""
    clock = SystemClock(Paths())
    store = Store(state / "bandog.db", clock=clock)
    opened = await store.open(SOON)
    assert opened.how in (How.OPENED, How.FRESH), opened
    saved = await store.load()
    ended: set[str] = set()
    executor = Executor(
        site=FakeSite(FakeHost(state / "host"), services=FakeServices()),
        clock=clock,
        store=store,
        ledger=Ledger(Limits(host=MANY), saved.charges, saved.memory.get(BUDGETS_KEY, {})),
        workers=Workers(),
        actions={"restart": Deadly(state / "notes", kind)},
        gates=(),
        report=lambda report: ended.add(report.request) if report.state.ended else None,
        incident_of=lambda number: None,
        service_of=lambda name: Service(name=name, unit=f"{name}.service"),
        mode=lambda: "enforce",
    )
    wanted = {one.request.id for one in saved.requests if not one.state.ended}
    executor.resume(saved.requests)
    if number is not None:
        now = clock.now()
        executor.submit(
            Request(
                id=f"{number}.1",
                incident=number,
                policy="xid",
                step=0,
                action="restart",
                subject="gpu:0000:01:00.0",
                kind="nvidia.xid",
                service=f"s{number}",
                found_at=now,
                made_at=now,
                mode="enforce",
            )
        )
        wanted.add(f"{number}.1")
    while not wanted <= ended:  # noqa: ASYNC110  (the other side is a thread)
        await asyncio.sleep(0.002)
    await executor.close()
    await store.close(SOON)


def one_round(state: Path, kind: str, number: int | None, die_after: float | None) -> int:
    """Fork one agent, kill it after a while if asked, return its wait status."""
    child = os.fork()
    if child == 0:
        asyncio.run(agent(state, kind, number))
        os._exit(0)
    if die_after is not None:
        time.sleep(die_after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def life(state: Path) -> float:
    """How long an agent that nobody kills lives on this machine, in seconds; the middle one of five."""
    state.mkdir()
    took = []
    for number in range(1, 6):
        began = time.monotonic()
        assert one_round(state, "none", number, None) == 0
        took.append(time.monotonic() - began)
    return sorted(took)[2]


def main(state: Path, kind: str, rounds: int, seed: int) -> None:
    """Let every agent but the last die, and print how many were killed."""
    chance = random.Random(seed)
    whole = life(state / "undisturbed") if kind == "random" else 0.0
    killed = 0
    for number in range(1, rounds + 1):
        die_after = chance.uniform(0.05, 1.1) * whole if kind == "random" else None
        status = one_round(state, kind, number, die_after)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    last = one_round(state, "none", None, None)
    assert last == 0, last
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
