"""A tensor-parallel worker: holds a GPU from its start on, works a step when told, dies with its GPU."""

from __future__ import annotations

import os
import select
import tempfile
import time
from pathlib import Path

from .cards import Cards, Hold
from .options import Options
from .processes import Channel, Message, say

LOOK = 0.25
RAMP = 4
GIB = 1 << 30


class CudaError(Exception):
    """The worker cannot go on; the text is what torch says."""


def run(rank: int, channel: Channel, options: Options, cards: Cards | None, uuid: str | None) -> int:
    """Start, say ready, then work until the engine has gone; return the exit code."""
    hold = cards.hold(uuid) if cards is not None and uuid is not None else None
    try:
        _start(rank, options, hold)
        channel.send({"ready": True})
        return _work(channel, hold)
    except CudaError as error:
        say(f"ERROR WorkerProc hit an exception. {error}")
        return 1
    finally:
        if hold is not None:
            hold.release()


def _start(rank: int, options: Options, hold: Hold | None) -> None:
    """Load and profile as vLLM's gpu_worker.py does, and fail as it does where memory is not as it wants it."""
    if hold is None:
        time.sleep(options.load + options.profile)
        return
    _alive(hold)
    total, before = hold.total, hold.free()
    wanted = int(options.utilization * total)
    if before < wanted:
        raise CudaError(
            f"ValueError: Free memory on device cuda:{rank} ({before / GIB:.2f}/{total / GIB:.2f} GiB) on startup is "
            f"less than desired GPU memory utilization ({options.utilization}, {wanted / GIB:.2f} GiB). Decrease GPU "
            "memory utilization or reduce GPU memory used by other processes."
        )
    weights = int(options.weights * total)
    for part in range(1, RAMP + 1):
        _take(rank, hold, weights * part // RAMP)
        _pass(options.load / RAMP, hold)
    _take(rank, hold, int(options.peak * total))
    _pass(options.profile, hold)
    _take(rank, hold, weights)
    after = hold.free() - weights
    if after > before:
        raise CudaError(
            f"AssertionError: Error in memory profiling. Initial free memory {before / GIB:.2f} GiB, current free "
            f"memory {after / GIB:.2f} GiB. This happens when other processes sharing the same container release GPU "
            "memory while vLLM is profiling during initialization. To fix this, ensure consistent GPU memory "
            "allocation or isolate vLLM in its own container."
        )
    _take(rank, hold, wanted)


def _take(rank: int, hold: Hold, size: int) -> None:
    if hold.take(size):
        return
    raise CudaError(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU {rank} has a total "
        f"capacity of {hold.total / GIB:.2f} GiB of which {hold.free() / GIB:.2f} GiB is free."
    )


def _pass(seconds: float, hold: Hold) -> None:
    """Let time pass, at the mercy of the GPU."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, LOOK))
        _alive(hold)


def _alive(hold: Hold | None) -> None:
    if hold is not None and not hold.answers():
        raise CudaError("torch.AcceleratorError: CUDA error: unspecified launch failure")


def _work(channel: Channel, hold: Hold | None) -> int:
    while True:
        ready, _, _ = select.select([channel], [], [], LOOK)
        _alive(hold)
        messages = channel.receive() if ready else []
        if messages is None:
            return 0  # the engine's death is the end of its workers
        for message in messages:
            _obey(message, channel)


def _obey(message: Message, channel: Channel) -> None:
    if "die" in message:
        raise CudaError("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")
    if "wedge" in message:
        wedge(Path(message["wedge"]))
    if "step" in message:
        channel.send({"done": message["step"]})


def wedge(fifo: Path) -> None:
    """Sit in D state until somebody opens `fifo` for writing, or SIGKILL comes.

    The child of posix_spawn waits for a writer before it runs its program, and until then its parent,
    joined to it by vfork, waits in the kernel and minds no other signal.
    """
    if not fifo.exists():
        os.mkfifo(fifo, 0o600)
    action = (os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)
    pid = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])
    os.waitpid(pid, 0)


def default_fifo() -> str:
    """Return where the FIFO of a server is made that was told no place."""
    return str(Path(tempfile.gettempdir()) / f"fakevllm-{os.getpid()}.fifo")
