"""Calling an action: the third and last door at which everything that a plugin raises is caught.

`run`, `prove` and `proof_time` are a plugin's code. Coroutine functions run on the loop, plain
ones in a worker, both under a deadline; whatever comes of it is a value. A guard, if there is one,
watches what runs on the loop, and remembers who was at work should the agent die in it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ..domain.codec import to_json
from ..domain.model import EMPTY, Proof, ProofState, Request, Result, ResultState
from ..domain.policy import format_duration
from ..host.site import Site
from ..plugin import Action
from .guard import Guard, PluginTimeout
from .workers import Workers, WorkersBusy, WorkerTimeout

log = logging.getLogger(__name__)

PROOF_CALL = timedelta(seconds=30)
"""One look of `prove`; one that takes longer could not tell."""
PROOF_TIME_CALL = timedelta(seconds=5)
MAX_FACTS = 64 * 1024
MAX_WHY = 2000
"""Characters of a sentence for people; a row that is too big for the store would leave the request as it was."""


class ActionCrash(Exception):
    """A coroutine of an action raised what would end the loop (SystemExit, KeyboardInterrupt …)."""


class Overrun(Exception):
    """A coroutine of an action took longer than its deadline, or held the loop too long, and was ended."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of `run`. `late` is set when it was left behind: resolved when its thread has ended."""

    result: Result
    late: asyncio.Future[None] | None = None


async def run(action: Action, request: Request, site: Site, workers: Workers, guard: Guard | None = None) -> Ran:
    """Run the action once; raises nothing but CancelledError."""
    desk = _Desk(action.name, workers, guard)
    try:
        value = await desk.call(lambda: action.run(request, site), action.run, action.run_deadline)
    except asyncio.CancelledError:
        raise
    except WorkersBusy as error:
        return Ran(Result.retry(str(error)))
    except WorkerTimeout as error:
        return Ran(Result.failed(f"{error}; what it began may still be going on"), error.late)
    except Overrun as error:
        return Ran(Result.failed(str(error)))
    except Exception as error:
        return Ran(Result.failed(_told(action, "run", error)))
    if not isinstance(value, Result):
        return Ran(Result.failed(f"{action.name} returned {type(value).__name__} instead of a Result"))
    if not isinstance(value.state, ResultState):
        return Ran(Result.failed(f"{action.name} returned a Result without a state"))
    return Ran(replace(value, why=_sentence(value.why), facts=_expressible(value.facts, action.name)))


async def prove(
    action: Action,
    request: Request,
    result: Result,
    site: Site,
    workers: Workers,
    left: timedelta,
    guard: Guard | None = None,
) -> Proof:
    """Look once whether it helped; what cannot be told is NOT_YET. Raises nothing but CancelledError."""
    deadline = min(PROOF_CALL, max(left, timedelta(seconds=1)))
    desk = _Desk(action.name, workers, guard)
    try:
        value = await desk.call(lambda: action.prove(request, result, site), action.prove, deadline, "prove")
    except asyncio.CancelledError:
        raise
    except (WorkersBusy, WorkerTimeout, Overrun) as error:
        return Proof.not_yet(str(error))
    except Exception as error:
        return Proof.not_yet(_told(action, "prove", error))
    if not isinstance(value, Proof):
        return Proof.not_yet(f"{action.name} returned {type(value).__name__} instead of a Proof")
    if not isinstance(value.state, ProofState):
        return Proof.not_yet(f"{action.name} returned a Proof without a state")
    return replace(value, why=_sentence(value.why), facts=_expressible(value.facts, action.name))


async def proof_time(
    action: Action, request: Request, site: Site, workers: Workers, guard: Guard | None = None
) -> timedelta:
    """Return how long the proof may take, the action's default if it cannot say."""
    desk = _Desk(action.name, workers, guard)
    try:
        value = await desk.work(lambda: action.proof_time(request, site), PROOF_TIME_CALL, "proof_time")
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.warning("proof time unknown action=%s why=%s", action.name, type(error).__name__)
        return action.proof_deadline
    return value if isinstance(value, timedelta) else action.proof_deadline


@dataclass(frozen=True, slots=True)
class _Desk:
    """Where the calls of one action are made."""

    action: str
    workers: Workers
    guard: Guard | None

    async def call(
        self, call: Callable[[], Any], method: Callable[..., Any], deadline: timedelta, proof: str = ""
    ) -> Any:
        """Call on the loop or in a thread, as `method` is written; `proof` is its name if it proves."""
        name = f"{self.action}.{proof}" if proof else self.action
        if inspect.iscoroutinefunction(method):
            return await _await(self._watched(call()), deadline, name)
        value = await self.work(call, deadline, proof)
        return await _await(self._watched(value), deadline, name) if inspect.isawaitable(value) else value

    async def work(self, call: Callable[[], Any], deadline: timedelta, proof: str = "") -> Any:
        """Call in a thread."""
        if not proof:
            return await self.workers.run(call, deadline=deadline, name=self.action)

        def prove() -> Any:
            with self.guard.proof(self.action, proof) if self.guard is not None else nullcontext():
                return call()

        return await self.workers.run(prove, deadline=deadline, name=f"{self.action}.{proof}")

    def _watched(self, work: Awaitable[Any]) -> Awaitable[Any]:
        return self.guard.steps(self.action, work) if self.guard is not None and inspect.iscoroutine(work) else work


async def _await(work: Awaitable[Any], deadline: timedelta, name: str) -> Any:
    task = asyncio.ensure_future(_contained(work, name))
    try:
        done, _ = await asyncio.wait({task}, timeout=deadline.total_seconds())
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise Overrun(f"{name} took longer than {format_duration(deadline)}")
    if task.cancelled():  # by itself: we were not, or this line would not be reached
        raise Overrun(f"{name} cancelled itself")
    return task.result()


async def _contained(work: Awaitable[Any], name: str) -> Any:
    """A task that raises SystemExit or KeyboardInterrupt ends the whole loop, and each start would prove again."""
    try:
        return await work
    except PluginTimeout as error:
        raise Overrun(str(error)) from error
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise ActionCrash(f"{name} raised {type(error).__name__}") from error


def _told(action: Action, method: str, error: Exception) -> str:
    """Name the type only: an exception's text may hold a secret. The place goes to the log."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else "?"
    kind = type(error).__name__
    log.error("action raised action=%s method=%s type=%s place=%s", action.name, method, kind, place)
    log.debug("action raised action=%s", action.name, exc_info=error)
    return f"{action.name} raised {kind} in {method}"


def _sentence(why: object) -> str:
    text = why if isinstance(why, str) else repr(why)
    return text if len(text) <= MAX_WHY else text[: MAX_WHY - 1] + "…"


def _expressible(facts: Any, name: str) -> Mapping[str, Any]:
    """Facts go through the store to `prove`, so they must have a JSON form of a sane size."""
    if isinstance(facts, Mapping) and _has_json(facts):
        return facts
    log.error("facts dropped, they have no JSON form or are too big action=%s", name)
    return EMPTY


def _has_json(facts: Any) -> bool:
    try:
        return len(json.dumps(to_json(facts))) <= MAX_FACTS
    except (TypeError, ValueError, RecursionError):
        return False
