"""The front end's half of the engine: sends requests, hears of steps, keeps the counters, notices the end."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

from .metrics import Stats
from .processes import Channel, Message, say

LOG_EVERY = 10.0


@dataclass
class Pending:
    """A request that a client waits for."""

    prompt: int
    begun: float
    tokens: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    failed: bool = False


class Frontend:
    """Joins the threads of the HTTP server with the engine's process."""

    def __init__(self, engine: Channel) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._numbers = itertools.count(1)
        self.stats = Stats()
        self.workers: list[int] = []
        self.dead = threading.Event()

    def wait_ready(self) -> bool:
        """Wait for the engine's start; False when it failed."""
        while True:
            messages = self._engine.receive()
            if messages is None:
                return False
            for message in messages:
                if "ready" in message:
                    self.workers = message["ready"]
                    return True

    def start(self) -> None:
        """Begin to listen to the engine."""
        threading.Thread(target=self._listen, name="outputs", daemon=True).start()
        threading.Thread(target=self._log, name="throughput", daemon=True).start()

    def _listen(self) -> None:
        while (messages := self._engine.receive()) is not None:
            for message in messages:
                self._heard(message)
        self.dead.set()
        with self._lock:
            for one in self._pending.values():
                one.failed = True
                one.ended.set()

    def _heard(self, message: Message) -> None:
        now = time.monotonic()
        stats = self.stats
        with self._lock:
            stats.running, stats.waiting, stats.kv_usage = message["running"], message["waiting"], message["kv"]
            stats.prompt_tokens += message["prompt"]
            stats.generation_tokens += len(message["tokens"])
            stats.iterations.observe(message["prompt"] + len(message["tokens"]))
            for number in message["tokens"]:
                one = self._pending.get(number)
                if one is not None:
                    one.tokens += 1
                    if one.tokens == 1:
                        stats.first_token.observe(now - one.begun)
            for number in message["ended"]:
                one = self._pending.pop(number, None)
                if one is not None:
                    stats.finished["length"] += 1
                    stats.latency.observe(now - one.begun)
                    one.ended.set()

    def _log(self) -> None:
        """Print vLLM's line about throughput; like it, only where something has moved or runs."""
        before = (0, 0)
        while not self.dead.wait(LOG_EVERY):
            stats = self.stats
            now = (stats.prompt_tokens, stats.generation_tokens)
            if now != before or stats.running:
                prompt, generation = ((new - old) / LOG_EVERY for new, old in zip(now, before, strict=True))
                say(
                    f"INFO Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
                    f"{generation:.1f} tokens/s, Running: {stats.running} reqs, Waiting: {stats.waiting} reqs, "
                    f"GPU KV cache usage: {stats.kv_usage:.1%}"
                )
            before = now

    def ask(self, prompt: int, tokens: int) -> tuple[int, Pending]:
        """Send a request; the answer's `ended` is set when it is done or the engine is dead."""
        one = Pending(prompt=prompt, begun=time.monotonic())
        with self._lock:
            number = next(self._numbers)
            self._pending[number] = one
            if self.dead.is_set():
                one.failed = True
                one.ended.set()
            self._engine.send({"request": number, "prompt": prompt, "tokens": tokens})
        return number, one

    def abort(self, number: int) -> None:
        """Give a request up: its client has gone."""
        with self._lock:
            if self._pending.pop(number, None) is not None:
                self.stats.finished["abort"] += 1
                self._engine.send({"abort": number})

    def order(self, mode: str, argument: str) -> None:
        """Tell the engine its mode."""
        with self._lock:
            self._engine.send({"mode": mode, "argument": argument})
