"""Bad days of the whole agent: dead disks, a dead bus, deaf people, foul plugins, garbage, floods.

On each of them the loop goes on (its ping to systemd is the witness), people are told by a sink
that still works, and nothing disruptive happens without its record on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bandog.domain.model import IncidentState
from simhost.disks import Disk, failing, filling, freezing, read_only
from simhost.scene import Scene, Story
from simhost.sink import free_port
from simhost.world import World, xid

POLICY = """\
policy: test-xid
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 10s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 1s}
"""
AGENT = """\
policy: test-agent
match: {kind: agent.*}
quiet: 10s
resolve: cleared
notify: [oncall]
"""
CHAT = """\
policy: test-chat
match: {kind: nvidia.xid, facts: {xid: [95]}}
severity: error
quiet: 10s
resolve: quiet
notify: [oncall, chat]
"""
POLICIES = {"10-test": POLICY, "90-agent": AGENT}
FOUL = {
    "broken_import": "raise RuntimeError('no driver')\n",
    "raise_in_feed": """
from bandog import LogDetector, hookimpl

class Raises(LogDetector):
    name = "raise-in-feed"
    needles = (b"please raise",)

    def feed(self, record):
        raise ValueError("odd line")

@hookimpl
def register_detectors(register):
    register(Raises)
""",
    "block_in_feed": """
import time
from bandog import LogDetector, hookimpl

class Blocks(LogDetector):
    name = "block-in-feed"
    needles = (b"please block",)

    def feed(self, record):
        time.sleep(60)
        return ()

@hookimpl
def register_detectors(register):
    register(Blocks)
""",
    "endless_probe": """
import time
from datetime import timedelta
from bandog import Probe, hookimpl

class Endless(Probe):
    name = "endless-probe"
    every = timedelta(milliseconds=200)
    deadline = timedelta(milliseconds=100)

    def poll(self, site):
        time.sleep(60)
        return ()

@hookimpl
def register_detectors(register):
    register(Endless)
""",
    "endless_hook": """
import time
from bandog import hookimpl

@hookimpl
def incident_changed(incident, change):
    time.sleep(60)
""",
    "child_in_d": """
import sys
from datetime import timedelta
from bandog import Probe, hookimpl

# posix_spawn is a vfork: the parent sits in D state while its child opens a FIFO that nobody writes to.
D = "import os, sys; os.mkfifo(sys.argv[1]); " \\
    "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])"

class ChildInD(Probe):
    name = "child-in-d"
    every = timedelta(seconds=1)
    deadline = timedelta(seconds=5)
    rounds = 0

    def poll(self, site):
        self.rounds += 1
        fifo = str(site.paths.run / f"fifo{self.rounds}")
        outcome = site.child([sys.executable, "-c", D, fifo], deadline=timedelta(seconds=1))
        if not outcome.ok:
            raise OSError(f"the child gave no answer: {outcome.timed_out} {outcome.stuck}")
        return ()

@hookimpl
def register_detectors(register):
    register(ChildInD)
""",
}
WRITER = """
from datetime import timedelta
from bandog import Probe, hookimpl

class Writer(Probe):
    name = "writer"
    every = timedelta(seconds=1)
    deadline = timedelta(seconds=10)

    def poll(self, site):
        if not site.child(["touch", "@/touched"], deadline=timedelta(seconds=1)).ok:
            raise OSError("the child gave no answer")
        return ()

@hookimpl
def register_detectors(register):
    register(Writer)
"""
GUARD = 4.0
"""Seconds after which a detector that holds the loop is taken out: twice the guard's limit."""
RATE = 5.0
LAG = 4.0
"""Seconds that a tick may come late."""


@contextlib.contextmanager
def ticking(host: World, lag: float = LAG) -> Iterator[None]:
    """The loop's ping goes on each second throughout the block."""
    begun = time.monotonic()
    yield
    assert host.alive, host.log()[-4000:]
    assert host.notify.worst_gap(begun) < 1.0 + lag


def restarted(host: World) -> bool:
    """True once the service was restarted and its incident has ended well."""
    found = [one for one in host.incidents() if one.kind == "nvidia.xid"]
    return bool(found) and all(one.state is IncidentState.RESOLVED for one in found)


def subject_of(host: World, subject: str) -> IncidentState | None:
    """Return how the newest incident about `subject` stands."""
    return next((one.state for one in reversed(host.incidents()) if one.subject == subject), None)


def talk(host: World) -> socket.socket:
    """Connect to the control socket."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(5)
    link.connect(str(host.root / "run/control"))
    return link


# --- disks ---------------------------------------------------------------------------------------------


def on_a_disk_that_comes_back(scene: Scene, make: Callable[[Path], AbstractContextManager[Disk]], words: str) -> None:
    """The disk takes nothing for a while; a child that writes to it may hang with it."""
    with make(scene.root) as disk:
        host = scene.world(policies=POLICIES, rate=RATE, state=disk.mount)
        host.settle_in()
        disk.spoil()
        host.readable = False
        try:
            with ticking(host):
                host.kernel.print(xid(1))
                host.until(lambda: host.told("Seen: Xid 94"), alive=True)
                host.until(lambda: host.told("agent store stuck"), alive=True)
                host.until(lambda: host.told(words), alive=True)
            assert host.pid1.calls == []
        finally:
            disk.mend()
        host.readable = True
        with ticking(host):
            host.until(lambda: restarted(host), 30, alive=True)
        assert host.jobs() == {"restart s1.service": 1}
        assert host.unrecorded() == []
        assert len(host.charges()) == 1
        host.stop()


def a_frozen_disk_means_no_act_and_a_message_until_it_thaws(scene: Scene) -> None:
    """Every write hangs in D state, as on a dying disk."""
    on_a_disk_that_comes_back(scene, freezing, "disk does not answer")


def a_full_disk_means_no_act_and_a_message_until_there_is_room(scene: Scene) -> None:
    """Every write fails."""
    on_a_disk_that_comes_back(scene, filling, "disk is full")


def a_state_directory_that_is_read_only_means_no_act_and_a_message(scene: Scene) -> None:
    """From the start; when it can be written again the agent starts anew, to use what it holds."""
    with read_only(scene.root) as disk:
        host = scene.world(policies=POLICIES, rate=RATE, state=disk.mount)
        host.start()
        with ticking(host):
            host.kernel.print(xid(1))
            host.until(lambda: host.told("Seen: Xid 94"), alive=True)
            host.until(lambda: host.told("agent store stuck"), alive=True)
        assert host.pid1.calls == []
        disk.mend()
        assert host.ended(30) == 0, "it ends, so that systemd starts it with the database"
        host.settle_in()
        host.kernel.print(xid(1))
        host.until(lambda: restarted(host), 30, alive=True)
        assert host.jobs() == {"restart s1.service": 1}
        assert host.unrecorded() == []
        host.stop()


def a_file_system_that_goes_read_only_after_an_error_means_no_act_and_a_message(scene: Scene) -> None:
    """As a root file system does; it never comes back, and the agent still ends at once."""
    with failing(scene.root) as disk:
        host = scene.world(policies=POLICIES, rate=RATE, state=disk.mount)
        host.settle_in()
        disk.spoil()
        with ticking(host):
            host.kernel.print(xid(1))
            host.until(lambda: host.told("Seen: Xid 94"), alive=True)
            host.until(lambda: host.told("agent store stuck"), alive=True)
        assert host.pid1.calls == []
        begun = time.monotonic()
        assert host.stop() == 0
        assert time.monotonic() - begun < 4


# --- PID 1 and people ------------------------------------------------------------------------------------


def on_a_bus_that_comes_back(scene: Scene, mode: str) -> None:
    """PID 1 is out of reach when the restart is due; the restart is made once it is back."""
    host = scene.world(policies=POLICIES, rate=RATE)
    host.settle_in()
    host.pid1.mode = mode
    with ticking(host):
        host.kernel.print(xid(1))
        host.until(lambda: any("tries again" in one.why for one in host.incidents()), alive=True)
        assert host.pid1.calls == []
        host.pid1.mode = "ok"
        host.until(lambda: restarted(host), 30, alive=True)
    assert host.jobs() == {"restart s1.service": 1}
    assert host.unrecorded() == []
    assert len(host.charges()) == 1, "tries that changed nothing cost one charge"
    host.stop()


def a_bus_that_breaks_delays_the_restart_and_doubles_nothing(scene: Scene) -> None:
    """D-Bus is restarted."""
    on_a_bus_that_comes_back(scene, "down")


def a_bus_that_hangs_delays_the_restart_and_doubles_nothing(scene: Scene) -> None:
    """PID 1 is busy or stuck."""
    on_a_bus_that_comes_back(scene, "hang")


def when_nobody_can_be_reached_the_last_sink_tells_and_a_deaf_target_delays_no_other(scene: Scene) -> None:
    """One target takes connections and never answers, one refuses them, one works."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        port = deaf.getsockname()[1]
        host = scene.world(
            policies={"10-test": POLICY, "20-chat": CHAT, "90-agent": AGENT},
            targets="mode: enforce\nnotify:\n"
            f"  oncall: {{urls: ['json://127.0.0.1:{port}/', 'json://127.0.0.1:{free_port()}/']}}\n"
            "  chat: {urls: '{sink}'}\n",
            rate=RATE,
        )
        host.settle_in()
        with ticking(host):
            host.kernel.print(xid(1))
            host.kernel.print(xid(2, 95, "Uncontained: LTC TAG (0x2)"))
            host.until(lambda: host.told("Seen: Xid 95"), alive=True)
            host.until(lambda: "Xid 94" in host.console.read(), 30, alive=True)
            host.until(lambda: restarted(host), 30, alive=True)
        assert "bandog: " in host.console.text
        begun = time.monotonic()
        host.stop()
        assert time.monotonic() - begun < 4


# --- plugins ---------------------------------------------------------------------------------------------


def foul_plugins_are_named_and_the_agent_goes_on(scene: Scene) -> None:
    """One raises at import, one in `feed`, one holds the loop, two hold their workers, one has a child that hangs."""
    host = scene.world(policies=POLICIES, plugins=FOUL, rate=RATE)
    host.settle_in()
    for word in ("raise", "block"):
        begun = time.monotonic()
        host.kernel.print(f"please {word} in feed")
        host.until(lambda word=word: subject_of(host, f"plugin:{word}-in-feed"), alive=True)
        assert host.notify.worst_gap(begun) < 1.0 + GUARD + LAG
    with ticking(host):
        host.until(lambda: subject_of(host, "plugin:broken_import"), alive=True)
        host.until(lambda: subject_of(host, "plugin:endless-probe"), 30, alive=True)
        host.until(lambda: subject_of(host, "plugin:child-in-d"), 30, alive=True)
        host.until(lambda: "agent.workers-stuck" in {one.kind for one in host.incidents()}, alive=True)
        host.kernel.print(xid(1))
        host.until(lambda: restarted(host), 30, alive=True)
    assert host.jobs() == {"restart s1.service": 1}
    begun = time.monotonic()
    assert host.stop() == 0
    assert time.monotonic() - begun < 4


def a_child_that_nothing_can_kill_delays_no_end_of_the_agent(scene: Scene) -> None:
    """It writes to a frozen file system, so that not even SIGKILL ends it (`systemctl restart` may take 2 s)."""
    with freezing(scene.root) as disk:
        host = scene.world(policies=POLICIES, plugins={"writer": WRITER.replace("@", str(disk.mount))}, rate=RATE)
        host.settle_in()
        disk.spoil()
        try:
            with ticking(host):
                host.until(lambda: subject_of(host, "plugin:writer"), 30, alive=True)
            begun = time.monotonic()
            assert host.stop() == 0
            assert time.monotonic() - begun < 2
            host.start()
            with ticking(host):
                host.kernel.print(xid(1))
                host.until(lambda: restarted(host), 30, alive=True)
            begun = time.monotonic()
            assert host.stop() == 0
            assert time.monotonic() - begun < 2
        finally:
            disk.mend()


def without_room_for_another_thread_the_agent_stops_as_it_was_told_to(scene: Scene) -> None:
    """Its address space is limited to what it has and 1 MiB; a thread wants 8 MiB for its stack."""
    host = scene.world(policies=POLICIES, rate=RATE)
    host.settle_in()
    size = int(Path(f"/proc/{host.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(host.pid, resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))
    host.kernel.print(xid(1, 95))
    assert host.stop() == 0
    assert "Traceback" not in host.log()


# --- input -----------------------------------------------------------------------------------------------


def garbage_on_every_input_causes_nothing(scene: Scene) -> None:
    """Control socket, kernel log and configuration; a broken configuration leaves the old one in force."""
    chance = random.Random(7)
    host = scene.world(policies=POLICIES, rate=RATE)
    host.settle_in()
    with ticking(host), contextlib.ExitStack() as idle:
        for _ in range(12):
            idle.enter_context(talk(host))
        for size in (0, 1, 100, 200_000):
            with talk(host) as link, contextlib.suppress(OSError):
                link.sendall(chance.randbytes(size) + b"\n")
                link.recv(1 << 16)
        endless = b'{"do": "hold", "with": {"target": "*", "seconds": 1e300, "reason": "x", "by": "x"}}'
        for line in (b"[]", b'{"do": 7}', b'{"do": "hold"}', b'{"do": "rearm", "with": []}', b"[" * 9000, endless):
            with talk(host) as link:
                link.sendall(line + b"\n")
                assert json.loads(link.makefile().readline())["ok"] is False
        for _ in range(200):
            host.kernel.garble(chance.randbytes(chance.randrange(1, 300)).replace(b"\n", b" ") + b"\n")
        host.kernel.print(xid(1), priority=12)
        host.write("etc/policies.d/10-test.yaml", "policy: [\n")
        host.signal(signal.SIGHUP)
        host.until(lambda: subject_of(host, "agent"), alive=True)
        assert host.pid1.calls == []

        host.kernel.print(xid(1))
        host.until(lambda: restarted(host), alive=True)
        host.write("etc/policies.d/10-test.yaml", POLICY)
        host.signal(signal.SIGHUP)
        host.until(lambda: subject_of(host, "agent") is IncidentState.RESOLVED, alive=True)
    assert host.jobs() == {"restart s1.service": 1}
    host.stop()


def a_stopped_journald_blocks_nobody(scene: Scene) -> None:
    """Nobody reads the agent's log, and the pipe is full."""
    host = scene.world(policies=POLICIES, main="log_level: debug\n", rate=RATE)
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        host.start(output=writer)
        with ticking(host):
            host.kernel.print("usb 1-1: new high-speed USB device number 2 using xhci_hcd")
            host.until(host.has_cursor, alive=True)
            host.kernel.print(xid(1))
            host.until(lambda: restarted(host), alive=True)
        begun = time.monotonic()
        assert host.stop() == 0
        assert time.monotonic() - begun < 4
    finally:
        os.close(reader)
        os.close(writer)


def in_a_flood_of_a_hundred_thousand_lines_every_wanted_one_is_found(scene: Scene) -> None:
    """All at once; ten Xids lie among them, and the loop goes on."""
    wanted = range(1, 11)
    host = scene.world(policies={"10-test": POLICY}, services=10, main="budgets: {restart: 99 per 1h}\n", rate=RATE)
    host.settle_in()
    noise = "mlx5_core 0000:c1:00.0: cmd_work_handler:877:(pid 0): failed to allocate command entry"
    with ticking(host):
        for number in wanted:
            host.kernel.flood([noise] * 5000)
            host.kernel.print(xid(number))
            host.kernel.flood([noise] * 5000)
        host.until(lambda: len(host.incidents()) == len(wanted), 30, alive=True)
        host.until(lambda: restarted(host), 60, alive=True)
    assert host.jobs() == {f"restart s{number}.service": 1 for number in wanted}
    assert host.unrecorded() == []
    host.stop()


STORIES: list[Story] = [
    a_frozen_disk_means_no_act_and_a_message_until_it_thaws,
    a_full_disk_means_no_act_and_a_message_until_there_is_room,
    a_state_directory_that_is_read_only_means_no_act_and_a_message,
    a_file_system_that_goes_read_only_after_an_error_means_no_act_and_a_message,
    a_bus_that_breaks_delays_the_restart_and_doubles_nothing,
    a_bus_that_hangs_delays_the_restart_and_doubles_nothing,
    when_nobody_can_be_reached_the_last_sink_tells_and_a_deaf_target_delays_no_other,
    foul_plugins_are_named_and_the_agent_goes_on,
    a_child_that_nothing_can_kill_delays_no_end_of_the_agent,
    without_room_for_another_thread_the_agent_stops_as_it_was_told_to,
    garbage_on_every_input_causes_nothing,
    a_stopped_journald_blocks_nobody,
    in_a_flood_of_a_hundred_thousand_lines_every_wanted_one_is_found,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_bad_day(together: Callable[[Story], None], story: Story) -> None:
    together(story)
