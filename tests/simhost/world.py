"""A host whose agent is a process of its own that may be killed: PID 1, kernel and people live on here."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bandog import Incident
from bandog.sources.bookmark import Bookmark
from bandog.store.reader import Reader, StoreUnreadable
from bandog.store.rows import AddCharge, SavedRequest

from .clock import WorldClock
from .kernel import KernelFile
from .listeners import Console, NotifySocket
from .pid1 import Pid1Server
from .sink import WebhookSink
from .units import SimulatedSystemd

TESTS = Path(__file__).parents[1]
SLEEPER = ("sleep", "infinity")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MAIN = 'mode: enforce\nnotify: {oncall: {urls: "{sink}"}}\n'
SERVICE = """\
service: {name}
unit: {name}.service
gpus: ["{gpu}"]
start: {{settle: 1s, timeout: 60s}}
ready: {{unit: true}}
"""
PLUGIN_META = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"


def gpu(number: int) -> str:
    """Return the PCI address of GPU `number`."""
    return f"0000:{number:02x}:00.0"


def xid(number: int, code: int = 94, text: str = "Contained: SM (0x1). RST: No, D-RST: No") -> str:
    """Return an Xid line of GPU `number`, as the driver prints it."""
    return f"NVRM: Xid (PCI:0000:{number:02x}:00): {code}, {text}"


class World:
    """The host below `root`. Service `s<n>` runs on GPU n, n from 1; `plugins` are name → source.

    `rate` is how much faster than ours its clock runs. `main` is appended to the main file;
    `targets` replaces its beginning, with `{sink}` for the URL of the webhook.
    """

    def __init__(
        self,
        root: Path,
        *,
        policies: Mapping[str, str],
        services: int = 1,
        main: str = "",
        targets: str | None = None,
        plugins: Mapping[str, str] | None = None,
        rate: float = 1.0,
        pause: Callable[[], float] = lambda: 0.0,
        state: Path | None = None,
    ) -> None:
        self.root = root
        for folder in ("etc/policies.d", "etc/services.d", "run", "policies", "dev", "plug", "proc/sys/kernel/random"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self.state = root / "state"
        if state is None:
            self.state.mkdir()
        else:
            self.state.symlink_to(state)
        self.clock = WorldClock.boot(utc=NOON, rate=rate)
        self.sink = WebhookSink()
        self.console = Console(root / "dev/kmsg")
        self.notify = NotifySocket(root / "notify")
        self.kernel = KernelFile(root / "kernel.log", lambda: self.clock.usec())
        names = [f"s{number}" for number in range(1, services + 1)]
        units = {f"{name}.service": SLEEPER for name in names}
        self.systemd = SimulatedSystemd(units, lambda: self.clock.seconds())
        self.pid1 = Pid1Server(root / "pid1", self.systemd, self.state / "bandog.db", pause).start()
        self.write("etc/bandog.yaml", (targets or MAIN).replace("{sink}", self.sink.url) + main)
        for number, name in enumerate(names, start=1):
            self.write(f"etc/services.d/{name}.yaml", SERVICE.format(name=name, gpu=gpu(number)))
            self.systemd.boot(f"{name}.service")
        for name, text in policies.items():
            self.write(f"etc/policies.d/{name}.yaml", text)
        for name, source in (plugins or {}).items():
            self.plug(name, source)
        self._boot_files()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (root / "agent.log").open("ab")
        self.starts = 0
        self.readable = True
        """False while reading the database could hang us too."""

    def write(self, path: str, text: str) -> None:
        """Write a file below the root, for root only."""
        (self.root / path).write_text(text)
        (self.root / path).chmod(0o600)

    def plug(self, name: str, source: str) -> None:
        """Install a plugin with an entry point, as pip would."""
        meta = self.root / f"plug/{name}-1.0.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(PLUGIN_META.format(name=name))
        (meta / "entry_points.txt").write_text(f"[bandog]\n{name} = {name}\n")
        (self.root / f"plug/{name}.py").write_text(source)

    def _boot_files(self) -> None:
        (self.root / "proc/sys/kernel/random/boot_id").write_text(self.clock.boot_id + "\n")
        (self.root / "proc/sys/kernel/hostname").write_text("gpu07\n")
        (self.root / "proc/sys/kernel/osrelease").write_text("6.12.0-simulated\n")
        (self.root / "proc/uptime").write_text(f"{self.clock.seconds():.2f} 0.00\n")

    def reboot(self, clock: WorldClock) -> None:
        """Begin another boot: other clock, other boot id, an empty kernel log. The agent must be down."""
        assert self._process is None
        self.clock = clock
        self._boot_files()
        self.kernel.close()
        self.kernel.path.unlink()
        self.kernel = KernelFile(self.kernel.path, lambda: self.clock.usec())
        for name in self.systemd.units:
            self.systemd.crash(name)
            self.systemd.boot(name)

    def later(self, by: timedelta) -> None:
        """Let time pass in this boot. The agent must be down."""
        assert self._process is None
        self.clock = replace(self.clock, began=self.clock.began - by.total_seconds() / self.clock.rate)
        self._boot_files()

    # --- the agent ---------------------------------------------------------------------------------

    def spawn(self, output: int | None = None) -> None:
        """Start the agent and return at once; its log goes to the file `agent.log`, or to `output`."""
        assert self._process is None
        environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        environ |= {
            "NOTIFY_SOCKET": str(self.notify.path),
            "WATCHDOG_USEC": "30000000",
            "PYTHONPATH": os.pathsep.join((str(TESTS), str(self.root / "plug"))),
            "SIMHOST_PID1": str(self.pid1.path),
        }
        command = [sys.executable, "-m", "simhost.runner", str(self.root), self.clock.to_text()]
        log = self._log.fileno() if output is None else output
        self._process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        self.starts += 1

    def start(self, within: float = 20.0, output: int | None = None) -> None:
        """Start the agent and wait until it says READY."""
        before = self.notify.ready
        self.spawn(output)
        self.until(lambda: self.notify.ready > before, within, alive=True)

    @property
    def pid(self) -> int:
        """The agent's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the agent runs."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send the agent a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self, within: float = 20.0) -> int:
        """Wait for the agent's end and return its exit code, negative for a signal."""
        assert self._process is not None
        code = self._process.wait(timeout=within)
        self._process = None
        return code

    def kill(self) -> int:
        """Kill the agent with SIGKILL, unless it is dead already."""
        self.signal(signal.SIGKILL)
        return self.ended()

    def stop(self, within: float = 20.0) -> int:
        """End the agent with SIGTERM."""
        self.signal(signal.SIGTERM)
        return self.ended(within)

    def log(self) -> str:
        """Return what the agents have logged."""
        return (self.root / "agent.log").read_text("utf-8", "replace")

    # --- looking -----------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], within: float = 20.0, *, alive: bool = False) -> None:
        """Wait for a condition; AssertionError with the agent's log if it does not come."""
        end = time.monotonic() + within
        while not condition():
            if alive and not self.alive:
                raise AssertionError(f"the agent has ended; its log ends:\n{self.log()[-4000:]}")
            if time.monotonic() > end:
                told = "\n".join(f"  #{one.id} {one.state.value} {one.subject}: {one.why}" for one in self.incidents())
                raise AssertionError(
                    f"did not happen within {within:g} s\n{told}\ncalls: {self.pid1.calls}\n{self.log()[-4000:]}"
                )
            time.sleep(0.02)

    def waited(self, condition: Callable[[], object], within: float) -> bool:
        """Wait for a condition that need not come; True if it did."""
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def incidents(self) -> tuple[Incident, ...]:
        """Return every incident on record, by number."""
        if not self.readable:
            return ()
        try:
            with Reader(self.state / "bandog.db") as reader:
                return tuple(sorted(reader.incidents(limit=10_000), key=lambda one: one.id))
        except StoreUnreadable:
            return ()

    def requests(self) -> tuple[SavedRequest, ...]:
        """Return every request on record, by incident and number."""
        with Reader(self.state / "bandog.db") as reader:
            return tuple(one for incident in self.incidents() for one in reader.requests(incident.id))

    def charges(self) -> tuple[AddCharge, ...]:
        """Return what is charged in earnest."""
        with Reader(self.state / "bandog.db") as reader:
            return tuple(one for one in reader.charges() if not one.shadow)

    def has_cursor(self) -> bool:
        """True once the agent has on record that it has read all that was printed so far.

        A bookmark before the newest line is not enough: what is read on the way to it is history.
        """
        try:
            with Reader(self.state / "bandog.db") as reader:
                marks = [Bookmark.parse(one.position, boot_id=self.clock.boot_id) for one in reader.cursors()]
        except StoreUnreadable:
            return False
        return any(mark is not None and max(mark.upto, mark.last.seq or 0) >= self.kernel.newest for mark in marks)

    def settle_in(self) -> None:
        """Start the agent and wait until what comes from here on counts, even if it is down when it comes."""
        self.start()
        self.kernel.print("usb 1-1: new high-speed USB device number 2 using xhci_hcd")
        self.until(self.has_cursor, alive=True)

    def jobs(self) -> Counter[str]:
        """Return how often each disruptive call was made: `restart s1.service` → times."""
        return Counter(f"{call.verb} {call.target}" for call in self.pid1.calls)

    def unrecorded(self) -> list[str]:
        """Return the disruptive calls that had no committed intent at their time."""
        return [f"{call.verb} {call.target}" for call in self.pid1.calls if not call.request]

    def spooled(self) -> int:
        """Return how many messages on record are still to be delivered."""
        with Reader(self.state / "bandog.db") as reader:
            return len(reader.messages())

    def told_of(self) -> set[int]:
        """Return the incidents of which the webhook has heard, in messages of their own or in digests."""
        numbers: set[int] = set()
        for one in self.sink.messages:
            numbers.update(one.get("incidents", ()), [one["incident"]] if "incident" in one else ())
        return numbers

    def told(self, word: str) -> list[str]:
        """Return the messages at the webhook that hold `word`."""
        return [f"{one['title']}\n{one['message']}" for one in self.sink.messages if word in str(one)]

    def close(self) -> None:
        """End everything that this world started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
        self._free_what_waits()
        self._log.close()
        self.pid1.close()
        self.systemd.shutdown()
        self.notify.close()
        self.console.close()
        self.sink.close()
        self.kernel.close()

    def _free_what_waits(self) -> None:
        """Let children go that wait for a writer of a FIFO in our run directory."""
        for fifo in (one for one in (self.root / "run").glob("fifo*") if one.is_fifo()):
            with contextlib.suppress(OSError):
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Return rows as text in columns."""
    cells = [[str(one) for one in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ("  ".join(one.ljust(width) for one, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def moments(seed: int, count: int, least: float, most: float) -> Iterator[float]:
    """Yield `count` random durations in seconds, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield chance.uniform(least, most)
