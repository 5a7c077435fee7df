"""The API server: checks its command line against the GPUs, forks the engine, opens its port once that is ready."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .api import Api, bind
from .cards import Cards
from .engine import Engine
from .frontend import Frontend
from .options import Options, parse
from .processes import Channel, fork, release, say
from .worker import default_fifo

GRACE = 1.0
"""systemd signals every process of a unit at once: workers that die in a stop are no fault."""
ENGINE_END = 10.0


class Refused(Exception):
    """The configuration cannot be served; the text is vLLM's."""


def check(options: Options, cards: Cards | None) -> list[str | None]:
    """Return the UUID of each rank's GPU, None where no GPUs are simulated. Raises Refused and ValueError."""
    size = options.tensor_parallel
    if options.heads % size:
        raise Refused(
            f"Value error, Total number of attention heads ({options.heads}) must be divisible by tensor parallel "
            f"size ({size})."
        )
    if options.kv_heads % size and size % options.kv_heads:
        raise Refused(f"AssertionError: {options.kv_heads} KV heads cannot be shared by {size} ranks")
    if cards is None:
        return [None] * size
    visible = cards.visible(os.environ)
    if not visible:
        raise Refused("RuntimeError: No CUDA GPUs are available")
    if size > len(visible):
        raise Refused(
            f"Value error, World size ({size}) is larger than the number of available GPUs ({len(visible)}) in this "
            "node. If this is intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
            "- multiprocessing, set '--nnodes' appropriately."
        )
    return [*visible[:size]]


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM (0) or the engine's death (1)."""
    options = parse(arguments)
    if not options.fifo:
        options = replace(options, fifo=default_fifo())
    cards = Cards.of_environment(os.environ)
    try:
        uuids = check(options, cards)
    except (Refused, ValueError) as error:
        say(f"ERROR {error if isinstance(error, Refused) else f'ValueError: {error}'}")
        return 1
    try:
        # Bound but deaf until the engine is ready: clients are refused, and another server cannot take the port.
        port = bind(options.host, options.port)
    except OSError as error:
        say(f"ERROR OSError: {error}")
        return 1
    ours, theirs = Channel.pair()
    # The engine must not outlive a stop that comes while it loads.
    stopping = threading.Event()
    engine = fork("VLLM::EngineCore", theirs, lambda: Engine(theirs, options, cards, uuids).run())
    theirs.close()
    signal.signal(signal.SIGTERM, lambda *_: _stop(stopping, engine))
    signal.signal(signal.SIGINT, lambda *_: _stop(stopping, engine))
    frontend = Frontend(ours)
    if not frontend.wait_ready():
        if not stopping.is_set():
            say("ERROR RuntimeError: Engine core initialization failed. See root cause above.")
        _reap(engine)
        return 0 if stopping.is_set() else 1
    return _serve(options, frontend, Api(options, port, frontend, engine=engine, uuids=uuids), stopping)


def _serve(options: Options, frontend: Frontend, api: Api, stopping: threading.Event) -> int:
    frontend.start()
    api.modes.start()
    threading.Thread(target=api.serve_forever, name="http", daemon=True).start()
    say(f"INFO Starting vLLM API server on http://{options.host}:{api.server_address[1]}")
    frontend.dead.wait()
    if not stopping.wait(GRACE):
        say("ERROR AsyncLLM output_handler failed: EngineDeadError: EngineCore encountered an issue.")
    _reap(api.engine)
    with contextlib.suppress(OSError):
        release(Path(options.fifo))
        Path(options.fifo).unlink()
    sys.stdout.flush()
    return 0 if stopping.is_set() else 1


def _stop(stopping: threading.Event, engine: int) -> None:
    stopping.set()
    with contextlib.suppress(OSError):
        os.kill(engine, signal.SIGTERM)


def _reap(engine: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(engine, 0)
