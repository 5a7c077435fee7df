"""An action that holds the loop is interrupted: its step fails, its proof tells nothing, the loop goes on."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

from bandog import Action, Proof, Request, Result, Site
from bandog.domain.model import ProofState, ResultState
from bandog.runtime import acting
from bandog.runtime.guard import Guard
from bandog.runtime.holding import Holding
from bandog.runtime.workers import Workers
from bandog.testing import FakeHost, FakeSite
from samples import request


class Blocking(Action):
    """Waits as it should, then holds the loop."""

    name = "blocking"

    async def run(self, request: Request, site: Site) -> Result:
        await asyncio.sleep(0)
        time.sleep(30)  # noqa: ASYNC251  (this is what must not be done)
        return Result.done("never")

    async def prove(self, request: Request, result: Result, site: Site) -> Proof:
        time.sleep(30)  # noqa: ASYNC251  (this is what must not be done)
        return Proof.proved("never")


class Plain(Action):
    """Keeps what the record says while its proof is at work."""

    name = "plain"

    def __init__(self, record: Path) -> None:
        super().__init__()
        self.record = record
        self.seen: list[bool] = []

    def _look(self) -> None:
        self.seen.append(b"\x05plain" in self.record.read_bytes())

    def run(self, request: Request, site: Site) -> Result:
        self._look()
        return Result.done("done")

    def proof_time(self, request: Request, site: Site) -> timedelta:
        self._look()
        return timedelta(seconds=5)

    def prove(self, request: Request, result: Result, site: Site) -> Proof:
        self._look()
        return Proof.proved("it helped")


def asked(host: FakeHost) -> Request:
    return request(at=host.clock.now(), action="any", service=None)


def test_an_action_that_holds_the_loop_is_interrupted(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)

    async def main(guard: Guard) -> tuple[acting.Ran, Proof]:
        request, site, workers = asked(host), FakeSite(host), Workers()
        ran = await acting.run(Blocking(), request, site, workers, guard)
        return ran, await acting.prove(Blocking(), request, ran.result, site, workers, timedelta(minutes=1), guard)

    begun = time.monotonic()
    with Guard(timedelta(milliseconds=50)).running() as guard:
        ran, proof = asyncio.run(main(guard))
    assert time.monotonic() - begun < 10
    assert ran.result.state is ResultState.FAILED
    assert "blocking held the loop" in ran.result.why
    assert (proof.state, "blocking held the loop" in proof.why) == (ProofState.NOT_YET, True)


def test_a_proof_in_a_thread_is_on_record_until_it_has_come_back_once(tmp_path: Path) -> None:
    host = FakeHost(tmp_path / "host")
    (tmp_path / "run").mkdir()
    holding = Holding(tmp_path / "run", host.clock.now())
    guard, action = Guard(holding=holding), Plain(tmp_path / "run/holding")

    async def main() -> None:
        request, site, workers = asked(host), FakeSite(host), Workers()
        ran = await acting.run(action, request, site, workers, guard)
        await acting.proof_time(action, request, site, workers, guard)
        for _ in range(2):
            proof = await acting.prove(action, request, ran.result, site, workers, timedelta(minutes=1), guard)
            assert proof.state is ProofState.PROVED

    asyncio.run(main())
    holding.close()
    assert action.seen == [False, True, True, False]
