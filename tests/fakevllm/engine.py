"""The engine core: batches requests, lets every worker make each step, and reports what came of it.

Nothing here pretends: a stopped, wedged or dead worker holds the engine up as it does vLLM's, because
each step waits for all of them, and the gauges of the pages are what the last finished step reported.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import worker
from .cards import Cards
from .options import Options
from .processes import Channel, Message, fork, release, say

SHM_WARNING = 60.0
KV_TOKENS = 1 << 18


class EngineDead(Exception):
    """A worker has gone; the engine cannot go on."""


@dataclass
class Request:
    """One request in the engine."""

    id: int
    prompt: int
    left: int
    held: int = 0


class Engine:
    """Runs in a process of its own; `api` leads to the front end."""

    def __init__(self, api: Channel, options: Options, cards: Cards | None, uuids: list[str | None]) -> None:
        self._api: Channel | None = api
        self._options = options
        self._cards = cards
        self._uuids = uuids
        self._workers: list[Channel] = []
        self._pids: list[int] = []
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._mode, self._argument = "normal", ""
        self._frozen = False
        self._steps = 0
        self._ready = False

    def run(self) -> int:
        """Start the workers, serve, and take the workers along at the end."""
        try:
            for rank, uuid in enumerate(self._uuids):
                ours, theirs = Channel.pair()
                self._workers.append(ours)
                self._pids.append(fork(f"VLLM::Worker_TP{rank}", theirs, self._worker(rank, theirs, uuid)))
                theirs.close()
            self._gather("ready")
            self._ready = True
            self._tell({"ready": self._pids})
            self._serve()
        except EngineDead as error:
            say(f"ERROR {'EngineCore failed to start' if not self._ready else 'EngineCore encountered a fatal error'}.")
            say(f"ERROR {error}")
            return 1
        finally:
            self._end_workers()
        return 0

    def _worker(self, rank: int, channel: Channel, uuid: str | None) -> Callable[[], int]:
        return lambda: worker.run(rank, channel, self._options, self._cards, uuid)

    def _end_workers(self) -> None:
        """SIGTERM, some patience, SIGKILL, as vLLM's executor does; a worker in D ends only by the last.

        What keeps it there is a child of its own that must not be left behind.
        """
        for number, patience in ((signal.SIGTERM, self._options.patience), (signal.SIGKILL, 4.0)):
            for pid in self._pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            end = time.monotonic() + patience
            while self._pids and time.monotonic() < end:
                self._pids = [pid for pid in self._pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
                time.sleep(0.01)
        release(Path(self._options.fifo))

    # --- serving -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            busy = bool(self._running or self._waiting) and not self._frozen
            self._listen(0.0 if busy else None)
            if busy:
                self._step()

    def _listen(self, patience: float | None) -> None:
        """Take what the front end says; a word of a worker outside a step is its death."""
        sources = [*self._workers, *([self._api] if self._api is not None else [])]
        for one in select.select(sources, [], [], patience)[0]:
            messages = one.receive()
            if one is not self._api:
                if messages is None:
                    raise EngineDead("Worker proc died unexpectedly, shutting down executor.")
            elif messages is None:
                # The front end was killed: vLLM's engine and workers live on and hold their GPUs.
                self._api = None
            else:
                for message in messages:
                    self._take(message)

    def _take(self, message: Message) -> None:
        if "request" in message:
            self._waiting.append(Request(message["request"], message["prompt"], message["tokens"]))
        if "abort" in message:
            self._running = [one for one in self._running if one.id != message["abort"]]
            self._waiting = deque(one for one in self._waiting if one.id != message["abort"])
        if "mode" in message:
            self._mode, self._argument = message["mode"], message["argument"]
            self._frozen = self._mode == "stall" and self._argument == "silent"
            rank = int(self._argument) if self._argument.isdecimal() else 0
            if self._mode in ("die", "d-state") and rank < len(self._workers):
                order = {"die": True} if self._mode == "die" else {"wedge": self._options.fifo}
                self._workers[rank].send(order)

    def _step(self) -> None:
        """Prefill what waits, or decode one token of each; wait for every worker; report."""
        admitted = []
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            admitted.append(self._waiting.popleft())
            self._running.append(admitted[-1])
        prompt = sum(one.prompt for one in admitted)
        decoding = [] if self._mode == "stall" and self._argument == "decode" else self._running
        if not admitted and not decoding:
            self._listen(0.1)
            return
        self._steps += 1
        for channel in self._workers:
            channel.send({"step": self._steps})
        self._gather("done")
        self._rest()
        for one in admitted:
            one.held = one.prompt
        for one in decoding:
            one.left -= 1
            one.held += 1
        ended = [one.id for one in decoding if one.left <= 0]
        told = [one.id for one in decoding]
        self._running = [one for one in self._running if one.id not in ended]
        self._tell(
            {
                "tokens": told,
                "ended": ended,
                "prompt": prompt,
                "running": len(self._running),
                "waiting": len(self._waiting),
                "kv": min(1.0, sum(one.held for one in self._running) / KV_TOKENS),
            }
        )
        if self._mode == "stall" and self._argument != "decode":
            self._frozen = True  # in the middle of the batch: the gauges keep saying that it runs

    def _rest(self) -> None:
        """Take a step's time; slow steps still hear of another mode."""
        end = time.monotonic() + self._options.step
        if self._mode == "slow":
            end = time.monotonic() + float(self._argument or 1)
            while self._mode == "slow" and (left := end - time.monotonic()) > 0:
                self._listen(left)
        time.sleep(max(0.0, end - time.monotonic()) if self._mode != "slow" else 0.0)

    def _gather(self, word: str) -> None:
        """Wait until every worker has answered, for ever if need be."""
        missing = set(self._workers)
        warned = time.monotonic()
        while missing:
            for one in select.select(list(missing), [], [], 1.0)[0]:
                messages = one.receive()
                if messages is None:
                    raise EngineDead("Worker proc died unexpectedly, shutting down executor.")
                if any(word in message for message in messages):
                    missing.discard(one)
            if time.monotonic() - warned >= SHM_WARNING:
                warned = time.monotonic()
                say("INFO No available shared memory broadcast block found in 60 seconds.")

    def _tell(self, message: Message) -> None:
        if self._api is not None:
            self._api.send(message)
