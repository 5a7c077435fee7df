"""The public test kit: a host, a clock, a PID 1 and a site that a test scripts, and `feed`.

Plugin authors use it as bandog's own tests do: real objects over a fake host, nothing patched.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from .domain.model import EMPTY, Finding, Instant, Record, Request
from .host.paths import Paths
from .host.site import Answer, CanaryAnswer, ChildOutcome, HttpReply, Readiness
from .host.systemd_types import JobOutcome, SystemdError, UnitState
from .plugin import LogDetector
from .services.inventory import Inventory
from .services.registry import Registry, Service

T = TypeVar("T")

BOOT_ID = "b007" * 8
"""The boot id of a `FakeClock` until its first `reboot`."""


class FakeClock:
    """A clock that stands still until `advance`; implements `site.Clock`.

    `sleep` returns once `advance` has passed its end, so a test decides the order of things.
    """

    def __init__(
        self,
        *,
        boot_id: str = BOOT_ID,
        boottime: timedelta = timedelta(hours=1),
        utc: datetime = datetime(2026, 11, 30, 12, 0, tzinfo=UTC),
        synced: bool = True,
    ) -> None:
        self._now = Instant(boot_id=boot_id, boottime=boottime, utc=utc, synced=synced)
        self._boots = itertools.count(1)
        self._sleepers: list[tuple[timedelta, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        """Return the moment at which the clock stands."""
        return self._now

    def at_kernel_time(self, usec: int) -> Instant:
        """Return the instant `usec` microseconds after the start of this boot."""
        return self._now.plus(timedelta(microseconds=usec) - self._now.boottime)

    async def sleep(self, duration: timedelta) -> None:
        """Wait until the clock has been advanced by `duration`; other tasks run meanwhile."""
        if duration <= timedelta():
            await asyncio.sleep(0)
            return
        ended = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now.boottime + duration, ended))
        await ended

    @property
    def sleeping(self) -> int:
        """How many `sleep` calls wait for the clock."""
        return sum(not ended.done() for _, ended in self._sleepers)

    def advance(self, duration: timedelta) -> Instant:
        """Move every clock on by `duration`, wake who has slept long enough, return the new moment."""
        self._now = self._now.plus(duration)
        due = [one for one in self._sleepers if one[0] <= self._now.boottime]
        self._sleepers = [one for one in self._sleepers if one[0] > self._now.boottime]
        for _, ended in sorted(due, key=lambda one: one[0]):
            if not ended.done():
                ended.set_result(None)
        return self._now

    async def run(self, duration: timedelta, *, step: timedelta = timedelta(seconds=1)) -> None:
        """Advance in steps and let every task that has become ready go on between them."""
        passed = timedelta()
        while passed < duration:
            await settle()
            self.advance(min(step, duration - passed))
            passed += step
        await settle()

    def set_utc(self, utc: datetime, *, synced: bool | None = None) -> None:
        """Set the wall clock alone, as a person or NTP does."""
        self._now = replace(self._now, utc=utc, synced=self._now.synced if synced is None else synced)

    def reboot(self, *, down: timedelta = timedelta(minutes=3), synced: bool | None = None) -> Instant:
        """Begin another boot `down` later by the wall clock, 20 s old; return its first moment."""
        self._now = Instant(
            boot_id=f"{next(self._boots):04x}" * 8,
            boottime=timedelta(seconds=20),
            utc=self._now.utc + down,
            synced=self._now.synced if synced is None else synced,
        )
        return self._now


async def settle(rounds: int = 20) -> None:
    """Let every task that can run do so, without any real time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)


Scripted = JobOutcome | SystemdError | str
"""How a scripted job ends: an outcome, an error to raise, or systemd's result word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job asked of a `FakeSystemd`."""

    verb: str
    unit: str


class FakeSystemd:
    """PID 1 with scripted units; implements the `Systemd` protocol and keeps a log of `jobs`.

    A job succeeds at once unless `script` says otherwise: `restart` and `start` give the unit a new
    main pid and invocation, `stop` takes them away.
    """

    def __init__(self, clock: FakeClock, *units: UnitState) -> None:
        self._clock = clock
        self._units = {unit.name: unit for unit in units}
        self._scripts: dict[tuple[str, str], list[Scripted]] = {}
        self._pids: dict[int, str] = {}
        self._next_pid = itertools.count(5000)
        self._down: SystemdError | None = None
        self._hold: asyncio.Event | None = None
        self.jobs: list[Job] = []
        self.resets: list[str] = []
        self.on_job: Callable[[Job], Awaitable[None] | None] | None = None

    def add(self, name: str, **fields: Any) -> UnitState:
        """Add a running unit (main pid, invocation, active since now); `fields` override."""
        pid = next(self._next_pid)
        running: dict[str, Any] = {
            "active_state": "active",
            "sub_state": "running",
            "main_pid": pid,
            "invocation_id": f"{pid:032x}",
            "active_enter": self._clock.now().boottime,
            "state_change": self._clock.now().boottime,
            "control_group": f"/system.slice/{name}",
            "fragment_path": f"/etc/systemd/system/{name}",
            "unit_file_state": "enabled",
        }
        self._units[name] = UnitState(name=name, **(running | fields))
        return self._units[name]

    def change(self, name: str, **fields: Any) -> UnitState:
        """Change fields of a unit, as if systemd or a person had."""
        self._units[name] = replace(self._units[name], **fields)
        return self._units[name]

    def remove(self, name: str) -> None:
        """Forget a unit: its load state becomes `not-found`."""
        self._units.pop(name, None)

    def script(self, verb: str, name: str, *ends: Scripted) -> None:
        """Let the next jobs `verb` on unit `name` end so, in order; then jobs succeed again."""
        self._scripts.setdefault((verb, name), []).extend(ends)

    def hold(self) -> asyncio.Event:
        """Let jobs wait until the event returned is set, or their deadline by the fake clock."""
        self._hold = asyncio.Event()
        return self._hold

    def disconnect(self, kind: str = "disconnected") -> None:
        """Let every call raise SystemdError(kind) until `reconnect`."""
        self._down = SystemdError(kind, f"the test says {kind}")

    def reconnect(self) -> None:
        """End `disconnect`."""
        self._down = None

    def place(self, pid: int, unit: str) -> None:
        """Say that `pid` belongs to `unit`."""
        self._pids[pid] = unit

    async def unit(self, name: str) -> UnitState:
        """Return the unit's state, `not-found` where none was added."""
        self._check()
        return self._units.get(name) or UnitState(name=name, load_state="not-found")

    async def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Log the job and end it as scripted."""
        return await self._job("restart", name, deadline)

    async def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Log the job and end it as scripted."""
        return await self._job("start", name, deadline)

    async def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Log the job and end it as scripted."""
        return await self._job("stop", name, deadline)

    async def reset_failed(self, name: str) -> None:
        """Log it; a failed unit becomes inactive. SystemdError `refused` for an unknown unit."""
        self._check()
        if name not in self._units:
            raise SystemdError("refused", f"Unit {name} not loaded.")
        self.resets.append(name)
        if self._units[name].active_state == "failed":
            self.change(name, active_state="inactive", sub_state="dead", result="success")

    async def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit that `place` or a main pid says."""
        self._check()
        if pid in self._pids:
            return self._pids[pid]
        return next((unit.name for unit in self._units.values() if unit.main_pid == pid), None)

    def _check(self) -> None:
        if self._down is not None:
            raise SystemdError(self._down.kind, str(self._down))

    async def _job(self, verb: str, name: str, deadline: timedelta) -> JobOutcome:
        self._check()
        job = Job(verb=verb, unit=name)
        self.jobs.append(job)
        number = len(self.jobs)
        if self.on_job is not None:
            waiting = self.on_job(job)
            if waiting is not None:
                await waiting
        if self._hold is not None and not await self._held(self._hold, deadline):
            return JobOutcome(result="timeout", job=number, why=f"no end within {deadline}")
        queue = self._scripts.get((verb, name))
        end: Scripted = queue.pop(0) if queue else "done"
        if isinstance(end, SystemdError):
            raise end
        outcome = replace(end, job=number) if isinstance(end, JobOutcome) else JobOutcome(result=end, job=number)
        if name not in self._units:
            return JobOutcome(result="refused", why=f"Unit {name} not found.")
        self._apply(verb, name, outcome)
        return outcome

    async def _held(self, held: asyncio.Event, deadline: timedelta) -> bool:
        """Return whether `held` was set before the fake clock passed the deadline."""
        released = asyncio.ensure_future(held.wait())
        late = asyncio.ensure_future(self._clock.sleep(deadline))
        try:
            await asyncio.wait({released, late}, return_when=asyncio.FIRST_COMPLETED)
            return released.done()
        finally:
            released.cancel()
            late.cancel()

    def _apply(self, verb: str, name: str, outcome: JobOutcome) -> None:
        now = self._clock.now().boottime
        if outcome.result == "failed":
            self.change(name, active_state="failed", sub_state="failed", main_pid=None, state_change=now)
        if not outcome.done:
            return
        if verb == "stop":
            self.change(
                name,
                active_state="inactive",
                sub_state="dead",
                main_pid=None,
                inactive_enter=now,
                state_change=now,
            )
        else:
            pid = next(self._next_pid)
            self.change(
                name,
                active_state="active",
                sub_state="running",
                result="success",
                main_pid=pid,
                invocation_id=f"{pid:032x}",
                active_enter=now,
                state_change=now,
            )


class FakeHost:
    """A host below a directory of the test; what `unsupported` and readers of /proc look at.

    The trees exist, /proc knows boot id, host name and uptime; `task` and `cgroup` add processes.
    """

    def __init__(self, root: Path, *, clock: FakeClock | None = None) -> None:
        self.paths = Paths(root=root)
        self.clock = clock or FakeClock()
        for tree in (self.paths.dev, self.paths.sys, self.paths.etc, self.paths.state, self.paths.run):
            tree.mkdir(parents=True, exist_ok=True)
        self.boot()

    def boot(self) -> None:
        """Write what /proc says of the clock's present boot."""
        hexes = self.clock.now().boot_id
        dashed = "-".join((hexes[:8], hexes[8:12], hexes[12:16], hexes[16:20], hexes[20:]))
        self.write("/proc/sys/kernel/random/boot_id", dashed + "\n")
        self.write("/proc/sys/kernel/hostname", "gpu07\n")
        self.write("/proc/sys/kernel/osrelease", "6.12.0-fake\n")
        self.write("/proc/uptime", f"{self.clock.now().boottime.total_seconds():.2f} 0.00\n")

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file at the absolute `path` of the fake host, directories included; return where it lies."""
        place = self.paths.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
        return place

    def task(
        self,
        pid: int,
        comm: str,
        state: str = "S",
        *,
        tid: int | None = None,
        ppid: int = 1,
        start: int = 1000,
        switches: int = 100,
        cpu_ticks: int = 10,
        wchan: str = "0",
        stack: str = "",
        cgroup: str = "/",
    ) -> None:
        """Write one task's stat, status, comm, wchan, stack and cgroup; `tid` other than `pid` is a thread."""
        number = pid if tid is None else tid
        fields = ["0"] * 49
        fields[0], fields[1], fields[11], fields[19] = state, str(ppid), str(cpu_ticks), str(start)
        files = {
            "stat": f"{number} ({comm}) {' '.join(fields)}\n",
            "status": f"Name:\t{comm}\nState:\t{state}\nTgid:\t{pid}\nPid:\t{number}\n"
            f"voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n",
            "comm": comm + "\n",
            "wchan": wchan,
            "stack": stack,
            "cgroup": f"0::{cgroup}\n",
        }
        places = [f"/proc/{pid}/task/{number}"] + ([f"/proc/{pid}"] if number == pid else [])
        for place, (name, text) in itertools.product(places, files.items()):
            self.write(f"{place}/{name}", text)

    def cgroup(self, path: str, *pids: int) -> None:
        """Write a cgroup-v2 group with these processes; `path` as systemd's ControlGroup spells it."""
        self.write(f"/sys/fs/cgroup{path}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))


class FakeServices:
    """The services of a test; `readiness` holds what `ready` answers, `canaries` what `canary` does.

    Unscripted, each is ready and its canary gets 8 tokens, or says that there is none.
    """

    def __init__(self, *services: Service) -> None:
        self.registry = Registry(services)
        self.readiness: dict[str, Readiness | Sequence[Readiness]] = {}
        self.canaries: dict[str, CanaryAnswer | Sequence[CanaryAnswer]] = {}

    def names(self) -> tuple[str, ...]:
        """Return every name in start order."""
        return tuple(service.name for service in self.registry)

    def get(self, name: str) -> Service:
        """Return the service; KeyError if there is none."""
        return self.registry.get(name)

    def ready(self, name: str) -> Readiness:
        """Answer as scripted: one answer for ever, or a sequence of which the last one stays."""
        return _scripted(self.readiness, name, Readiness(ready=True, why="scripted"))

    def canary(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> CanaryAnswer:
        """Answer as scripted: one answer for ever, or a sequence of which the last one stays."""
        if name not in self.canaries and not self.registry.get(name).canary:
            return CanaryAnswer(ok=None, why="no canary is configured")
        return _scripted(self.canaries, name, CanaryAnswer(ok=True, why="scripted", model="scripted", tokens=8))

    def serves(self, name: str, *, deadline: timedelta = timedelta(seconds=15)) -> Readiness:
        """Answer `ready`, and where it is ready and has a canary, what that says."""
        ready = self.ready(name)
        if ready.ready is not True or not (name in self.canaries or self.registry.get(name).canary):
            return ready
        answer = self.canary(name, deadline=deadline)
        return Readiness(ready=answer.ok, why=f"{ready.why}; canary: {answer.why}")


def _scripted(answers: dict[str, T | Sequence[T]], name: str, default: T) -> T:
    """Return the next answer of a script; the last one of a sequence stays."""
    answer = answers.get(name, default)
    if not isinstance(answer, Sequence):
        return answer
    first, *rest = answer
    if rest:
        answers[name] = rest
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message that an action asked for."""

    request: Request
    to: tuple[str, ...]
    text: str
    urgent: bool


class FakeResident:
    """A program that stays, answered for by the test; implements `site.Resident`."""

    def __init__(self, site: FakeSite, argv: tuple[str, ...]) -> None:
        self.pid: int | None = None
        self.stuck = False
        self._site = site
        self._argv = argv

    def ask(self, line: bytes, *, deadline: timedelta) -> Answer:
        """Answer by the site's `resident_results`."""
        if self.pid is None:
            self._site.children.append(self._argv)
            self.pid = 4000 + len(self._site.children)
        answers = self._site.resident_results
        answer = answers(self._argv, line) if answers else Answer(line=None, why="it ended with status 0")
        if answer.line is None:
            self.end()
        self.stuck = answer.stuck
        return answer

    def end(self) -> None:
        """Let the next question start it anew."""
        self.pid = None


@dataclass
class FakeSite:
    """A site over a `FakeHost`; implements `site.Site` and keeps what was asked of it.

    `child_results`, `resident_results` and `http_results` are functions that answer; without them every
    program ends with 0, every resident one without an answer, and every URL refuses the connection.
    `gpus` is the real inventory over the fake clock: let it `take` a look.
    """

    host: FakeHost
    systemd: FakeSystemd = field(default=None)  # type: ignore[assignment]  # filled in below
    services: FakeServices = field(default_factory=FakeServices)
    gpus: Inventory = field(default=None)  # type: ignore[assignment]  # filled in below
    child_results: Callable[[Sequence[str]], ChildOutcome] | None = None
    resident_results: Callable[[Sequence[str], bytes], Answer] | None = None
    http_results: Callable[[str, str], HttpReply] | None = None
    children: list[tuple[str, ...]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        if self.systemd is None:
            self.systemd = FakeSystemd(self.host.clock)
        if self.gpus is None:
            self.gpus = Inventory(self.host.clock)

    @property
    def paths(self) -> Paths:
        """Where the fake trees lie."""
        return self.host.paths

    @property
    def clock(self) -> FakeClock:
        """The fake clock."""
        return self.host.clock

    @property
    def hostname(self) -> str:
        """The fake host's name."""
        return "gpu07"

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        """Log the program and answer by `child_results`."""
        self.children.append(tuple(argv))
        return self.child_results(argv) if self.child_results else ChildOutcome(code=0)

    def resident(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> FakeResident:
        """Return one that answers by `resident_results`; its start is logged among `children`."""
        return FakeResident(self, tuple(argv))

    def http(
        self,
        method: str,
        url: str,
        *,
        deadline: timedelta,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = 1 << 20,
    ) -> HttpReply:
        """Log the call and answer by `http_results`."""
        self.requests.append((method, url))
        return self.http_results(method, url) if self.http_results else HttpReply(error="refused")

    def wait(self, work: Coroutine[Any, Any, T], *, deadline: timedelta) -> T:
        """Run `work` on `loop` where the test has one in another thread, else on a loop of its own."""
        if self.loop is not None:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result(deadline.total_seconds())
        return asyncio.run(asyncio.wait_for(work, deadline.total_seconds()))

    def evidence_dir(self, incident: int) -> Path:
        """Return a directory of the incident below the fake state directory."""
        place = self.paths.state / "evidence" / str(incident)
        place.mkdir(parents=True, exist_ok=True)
        return place

    async def note(self, request: Request, **facts: Any) -> None:
        """Keep the note in `notes`."""
        self.notes.append((request.id, facts))

    def tell(self, request: Request, *, to: Sequence[str], text: str = "", urgent: bool = False) -> None:
        """Keep the message in `told`."""
        self.told.append(Told(request=request, to=tuple(to), text=text, urgent=urgent))


def kernel_records(
    lines: str | Iterable[str],
    *,
    clock: FakeClock | None = None,
    live: bool = True,
    step: timedelta = timedelta(milliseconds=1),
    fields: Mapping[str, str] = EMPTY,
) -> list[Record]:
    """Return kernel-facility records of `lines`, `step` apart, the last one at the clock's moment."""
    texts = lines.splitlines() if isinstance(lines, str) else list(lines)
    now = (clock or FakeClock()).now()
    records = []
    for number, text in enumerate(texts, start=1):
        at = now.plus(-step * (len(texts) - number))
        records.append(
            Record(
                text=text,
                at=at,
                source="kmsg",
                live=live,
                level=4,
                seq=number,
                usec=at.boottime // timedelta(microseconds=1),
                line=number,
                fields=fields,
            )
        )
    return records


def feed(
    detector: LogDetector, lines: str | Iterable[str | Record], *, clock: FakeClock | None = None, live: bool = True
) -> list[Finding]:
    """Give `lines` to the detector as the daemon would, flush it at the end, return its findings.

    A string is split into physical lines; of an iterable each item is one record, so an inner
    newline stays. A detector that is not open gets only what holds one of its needles.
    """
    clock = clock or FakeClock()
    items = lines.splitlines() if isinstance(lines, str) else list(lines)
    made = iter(kernel_records([item for item in items if isinstance(item, str)], clock=clock, live=live))
    records = [next(made) if isinstance(item, str) else item for item in items]
    findings: list[Finding] = []
    for record in records:
        text = record.text.encode("utf-8", "surrogatepass")
        if detector.open or any(needle in text for needle in detector.needles):
            findings.extend(detector.feed(record))
    if detector.open:
        findings.extend(detector.flush(clock.now().plus(timedelta(minutes=1))))
    return findings
