"""Reasons to wait before something disruptive (DESIGN section 7).

Each gate is asked again every few seconds, in the order in which the executor got them, until none
objects; the patient one comes first, so that a request may wait for days without being looked at
by the rest. What a gate cannot tell counts as a
reason to wait, never as leave to act.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, TypeVar

from ..domain.model import Incident, Instant, Request
from ..domain.policy import format_duration
from ..domain.windows import Window
from ..host.paths import Paths
from ..host.site import Clock
from ..store.rows import SaveHold
from .workers import Workers, WorkersBusy, WorkerTimeout

T = TypeVar("T")

LOOK = timedelta(seconds=3)
"""How long a gate's look at a file may take; a dying disk is a reason to wait."""
BOOT_GRACE = timedelta(minutes=10)
VETO_DEADLINE = timedelta(seconds=5)
VETOES = 4
"""Requests that plugins are asked about at a time, so that slow ones do not occupy every thread."""
KUBELET_EVERY = timedelta(seconds=30)
CLOCK_FLOOR = datetime(2026, 1, 1, tzinfo=UTC)
"""An unsynchronised clock before this is a dead battery's, and no week day can be told by it."""
REBOOTS = frozenset({"reboot", "reset"})
PACKAGE_LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock")
"""Held by apt and dpkg as fcntl(2) record locks while they work (apt-pkg/contrib/fileutl.cc)."""
KUBELETS = frozenset({"kubelet", "k3s-server", "k3s-agent", "kubelite"})
"""comm of what runs a kubelet: upstream, k3s in both roles, MicroK8s."""


class Gate(Protocol):
    """One reason to wait. `patient`: a request may wait at it for days (a window), not just an hour."""

    name: str
    patient: bool

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return the reason to wait, in words for people, or None."""


class Veto(Protocol):
    """The `veto` hook of the loaded plugins (`pluginloader`)."""

    def __call__(self, *, request: Request, incident: Incident) -> str | None:
        """Return the first reason, or None; runs in a worker."""


async def _look(workers: Workers, fn: Callable[[], T], name: str, deadline: timedelta = LOOK) -> T | str:
    """Run a blocking look in a worker; its failure becomes the reason."""
    try:
        return await workers.run(fn, deadline=deadline, name=name)
    except (WorkerTimeout, WorkersBusy, OSError) as error:
        return f"cannot tell, so wait: {error}"


class _SharedLook:
    """One look at the host for all who ask while it lasts: a crowd of requests occupies one thread."""

    def __init__(self, workers: Workers, fn: Callable[[], str | None], name: str, deadline: timedelta = LOOK) -> None:
        self._workers = workers
        self._fn = fn
        self._name = name
        self._deadline = deadline
        self._under_way: asyncio.Future[str | None] | None = None

    async def ask(self) -> str | None:
        """Return the reason to wait that the look finds."""
        if self._under_way is None or self._under_way.done():
            look = _look(self._workers, self._fn, self._name, self._deadline)
            self._under_way = asyncio.ensure_future(look)
        return await asyncio.shield(self._under_way)


class Holds:
    """The pauses that people made, by target; the daemon keeps them in step with the store."""

    def __init__(self, holds: Iterable[SaveHold] = ()) -> None:
        self._by_target = {one.target: one for one in holds}

    def add(self, hold: SaveHold) -> None:
        """Take a new pause, in place of an older one on the same target."""
        self._by_target[hold.target] = hold

    def drop(self, target: str) -> SaveHold | None:
        """Forget the pause on `target`; return it, None if there was none."""
        return self._by_target.pop(target, None)

    def active(self, now: Instant) -> tuple[SaveHold, ...]:
        """Return the pauses that hold now."""
        return tuple(one for one in self._by_target.values() if not expired(one, now))

    def expired(self, now: Instant) -> tuple[SaveHold, ...]:
        """Return the pauses whose time is over and that can be dropped."""
        return tuple(one for one in self._by_target.values() if expired(one, now))

    def of(self, request: Request, now: Instant) -> SaveHold | None:
        """Return the pause that keeps `request` waiting: of the host, its service or its policy."""
        for target in ("*", request.service, request.policy):
            hold = self._by_target.get(target) if target is not None else None
            if hold is not None and not expired(hold, now):
                return hold
        return None


def expired(hold: SaveHold, now: Instant) -> bool:
    """True once as much time has provably passed as the pause was made for."""
    return hold.until is not None and now.since(hold.made) >= hold.until.since(hold.made)


class HoldGate:
    """Pauses made with `bandog hold`, and the file `/etc/bandog/hold` whose text is the reason."""

    name = "hold"
    patient = False

    def __init__(
        self, holds: Holds, *, paths: Paths, clock: Clock, workers: Workers, deadline: timedelta = LOOK
    ) -> None:
        self._holds = holds
        self._clock = clock
        file = paths.etc / "hold"
        self._look = _SharedLook(workers, lambda: _hold_file(file), "gate.hold", deadline)

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return who paused what and why."""
        hold = self._holds.of(request, self._clock.now())
        if hold is not None:
            what = "everything" if hold.target == "*" else hold.target
            until = f" until {hold.until.utc:%Y-%m-%d %H:%M} UTC" if hold.until is not None else ""
            return f"{what} is on hold{until} by {hold.by}: {hold.reason}"
        return await self._look.ask()


def _hold_file(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            text = " ".join(stream.read(1000).decode("utf-8", "replace").split())
    except FileNotFoundError:
        return None
    return f"{file} says hold: {text}" if text else f"{file} says hold"


class PackageGate:
    """A package operation under way: a restart in the middle of an upgrade starts half a program."""

    name = "package"
    patient = False

    def __init__(self, *, paths: Paths, workers: Workers) -> None:
        self._files = tuple(paths.at(file) for file in PACKAGE_LOCKS)
        self._look = _SharedLook(workers, self._held, "gate.package")

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return which lock is held, and by which process."""
        return await self._look.ask()

    def _held(self) -> str | None:
        for file in self._files:
            pid = lock_holder(file)
            if pid is not None:
                return f"a package operation is under way ({file} is locked by process {pid})"
        return None


def lock_holder(file: Path) -> int | None:
    """Return the process that holds an fcntl lock on `file`, or None. Never locks, waits or creates it.

    Raises OSError if it cannot be asked.
    """
    try:
        number = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        # struct flock of fcntl(2) on 64-bit Linux: l_type, l_whence, pad, l_start, l_len, l_pid.
        asked = struct.pack("hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hh4xqqi4x", fcntl.fcntl(number, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)
    finally:
        os.close(number)


class KubeletGate:
    """A kubelet that runs here owns the services: two healers make loops. `kubernetes: true` lifts it."""

    name = "kubelet"
    patient = False

    def __init__(self, allowed: Callable[[], bool], *, paths: Paths, clock: Clock, workers: Workers) -> None:
        self._allowed = allowed
        self._proc = paths.proc
        self._clock = clock
        self._look = _SharedLook(workers, self._find, "gate.kubelet")
        self._seen: tuple[Instant, str | None] | None = None

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return that there is a kubelet; looked up at most every 30 s."""
        if self._allowed():
            return None
        now = self._clock.now()
        if self._seen is None or now.since(self._seen[0]) >= KUBELET_EVERY:
            self._seen = (now, await self._look.ask())
        return self._seen[1]

    def _find(self) -> str | None:
        with os.scandir(self._proc) as entries:
            pids = [entry.name for entry in entries if entry.name.isdigit()]
        for pid in pids:
            try:
                comm = (self._proc / pid / "comm").read_bytes().decode("utf-8", "replace").strip()
            except OSError:
                continue
            if comm in KUBELETS:
                return f"{comm} (process {pid}) looks after this host; kubernetes: true lets bandog act"
        return None


class BootGate:
    """Shortly after a boot nothing resets or reboots again: the host must have had its chance."""

    name = "boot"
    patient = False

    def __init__(self, clock: Clock, grace: timedelta = BOOT_GRACE) -> None:
        self._clock = clock
        self._grace = grace

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return that it is too soon, for reboot and reset only."""
        if request.action not in REBOOTS or self._clock.now().boottime >= self._grace:
            return None
        return f"the host booted less than {format_duration(self._grace)} ago, too soon for a {request.action}"


class WindowGate:
    """`with: {when: window}`: only within the maintenance window `window:` names, else `default`."""

    name = "window"
    patient = True

    def __init__(self, windows: Callable[[], Mapping[str, Window]], clock: Clock) -> None:
        self._windows = windows
        self._clock = clock

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return when the window opens, or that there is none and a person must decide."""
        if request.with_.get("when") != "window":
            return None
        name = str(request.with_.get("window", "default"))
        window = self._windows().get(name)
        if window is None:
            return f"waits for a window, and no window {name!r} is configured; do it by hand or set windows:"
        now = self._clock.now()
        if not now.synced and now.utc < CLOCK_FLOOR:
            return f"the clock says {now.utc:%Y-%m-%d} and is not synchronised, so no window can be told"
        if window.is_open(now.utc):
            return None
        return f"waits for the window {name}, {window.next_opening(now.utc):%a %Y-%m-%d %H:%M %Z}"


MAX_REASON = 500
"""Characters of a plugin's reason; a longer one could not be stored with the request that it holds up."""


class VetoGate:
    """The `veto` hook: any plugin may object. One that crashes or takes 5 s objects too.

    While `anyone()` is False no plugin has the hook, and no thread is bothered.
    """

    name = "veto"
    patient = False

    def __init__(
        self,
        veto: Veto,
        workers: Workers,
        *,
        anyone: Callable[[], bool] = lambda: True,
        deadline: timedelta = VETO_DEADLINE,
    ) -> None:
        self._veto = veto
        self._anyone = anyone
        self._deadline = deadline
        self._workers = workers
        self._turns = asyncio.Semaphore(VETOES)

    async def check(self, request: Request, incident: Incident | None) -> str | None:
        """Return a plugin's reason."""
        if incident is None:
            return "its incident is not known, so no plugin can be asked"
        if not self._anyone():
            return None
        try:
            async with self._turns:
                reason = await self._workers.run(
                    lambda: self._veto(request=request, incident=incident), deadline=self._deadline, name="gate.veto"
                )
        except (WorkerTimeout, WorkersBusy) as error:
            return f"a veto refuses: {error}"
        # A plugin at work: whatever it raises is a refusal, never leave to act.
        except Exception as error:
            return f"a veto refuses: it raised {type(error).__name__}"
        return str(reason)[:MAX_REASON] if reason else None
