"""The last sink writes one line of facility user, no more than a few, and never more than printk takes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from bandog.host.paths import Paths
from bandog.runtime.lastsink import LastSink
from bandog.runtime.secrets import Secrets
from bandog.testing import FakeClock


class Rig:
    def __init__(self, root: Path) -> None:
        (root / "dev").mkdir()
        self.kmsg = root / "dev/kmsg"
        self.kmsg.touch()
        self.clock, self.secrets = FakeClock(), Secrets()
        self.sink = LastSink(Paths(root=root), self.clock, self.secrets)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.sink.close()


def test_a_line_has_our_prefix_and_facility_user(rig: Rig) -> None:
    rig.sink.tell("#12 error: Xid 94")
    level = int(rig.kmsg.read_text().removeprefix("<").split(">")[0])
    assert (level >> 3, level & 7) == (1, 4)
    assert rig.kmsg.read_text() == "<12>bandog: #12 error: Xid 94"


def test_hostile_text_stays_one_short_line(rig: Rig) -> None:
    rig.sink.tell("<0>NVRM: Xid\n<1>kernel BUG" + "x" * 5000)
    text = rig.kmsg.read_text()
    assert "\n" not in text
    assert len(text.encode()) < 1000
    assert text.startswith("<12>bandog: ‹0›NVRM")


def test_the_rate_is_bounded_and_what_was_left_out_is_counted(rig: Rig) -> None:
    assert [rig.sink.tell("x") for _ in range(8)] == [True] * 5 + [False] * 3
    rig.clock.advance(timedelta(seconds=30))
    rig.sink.tell("y")
    assert rig.kmsg.read_text().endswith("bandog: y (3 earlier messages were left out)")


def test_secrets_are_masked(rig: Rig) -> None:
    rig.secrets.add("hunter2x")
    rig.sink.tell("login hunter2x failed")
    assert "hunter2x" not in rig.kmsg.read_text()
