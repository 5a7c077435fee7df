"""Bad days of the whole agent: dead disks, a dead bus, deaf people, foul plugins, garbage, floods.

On each of them the loop goes on (its ping to systemd is the witness), people are told by a sink
that still works, and nothing disruptive happens without its record on the disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bandog.domain.model import IncidentState
from simhost.disks import Disk, failing, filling, freezing, read_only
from simhost.world import World, xid

MakeWorld = Callable[..., World]

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
POLICIES = {"10-test": POLICY, "90-agent": AGENT}
RATE = 5.0
LAG = 1.0
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


def kinds(host: World) -> set[str]:
    """Return the kinds of the incidents on record."""
    return {one.kind for one in host.incidents()}


# --- disks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "words"), [(freezing, "disk does not answer"), (filling, "disk is full")])
def test_a_disk_that_takes_nothing_means_no_act_and_a_message_until_it_is_back(
    world: MakeWorld, tmp_path: Path, make: Callable[[Path], AbstractContextManager[Disk]], words: str
) -> None:
    with make(tmp_path) as disk:
        host = world(policies=POLICIES, rate=RATE, state=disk.mount)
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


def test_a_state_directory_that_is_read_only_means_no_act_and_a_message(world: MakeWorld, tmp_path: Path) -> None:
    with read_only(tmp_path) as disk:
        host = world(policies=POLICIES, rate=RATE, state=disk.mount)
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


def test_a_file_system_that_goes_read_only_after_an_error_means_no_act_and_a_message(
    world: MakeWorld, tmp_path: Path
) -> None:
    with failing(tmp_path) as disk:
        host = world(policies=POLICIES, rate=RATE, state=disk.mount)
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
