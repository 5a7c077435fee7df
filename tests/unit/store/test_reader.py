"""Reading without a daemon, beside a daemon, after a crash and from a read-only file system."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from store_samples import NOW, charge, event, incident, later, saved

from bandog.domain.model import IncidentState, StepState
from bandog.store import Store
from bandog.store.reader import Reader, StoreUnreadable
from bandog.store.rows import Remember, SaveCursor, SaveHold, SaveIncident, SaveMessage
from bandog.testing import FakeClock

SOON = timedelta(seconds=10)
ROWS = (
    SaveIncident(incident=incident(1, state=IncidentState.RESOLVED)),
    SaveIncident(incident=incident(2, at=later(hours=1), subject="gpu:0000:17:00.0")),
    SaveIncident(incident=incident(3, at=later(hours=2), policy="hung-task", state=IncidentState.STUCK)),
    event(1, "opened"),
    event(2, "opened", at=later(hours=1)),
    event(1, "resolved"),
    event(0, "started"),
    saved("1.10", StepState.PROVED),
    saved("1.9", StepState.FAILED),
    charge(),
    SaveHold(target="*", by="ann", reason="r", made=NOW),
    SaveCursor(source="kmsg", boot_id="b", position="1"),
    SaveMessage(id="m", payload={"a": 1}),
    Remember(key="budgets", value={"breaker": None}),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that a daemon left behind."""

    async def write() -> None:
        store = Store(tmp_path / "bandog.db", clock=FakeClock())
        await store.open(SOON)
        await store.commit(*ROWS)
        await store.close(SOON)

    asyncio.run(write())
    return tmp_path / "bandog.db"


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    """A reader of it."""
    with Reader(path) as made:
        yield made


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ({}, [3, 2, 1]),
        ({"limit": 1}, [3]),
        ({"only_open": True}, [3, 2]),
        ({"policy": "hung-task"}, [3]),
        ({"subject": "gpu:0000:17:*"}, [2]),
        ({"states": [IncidentState.RESOLVED, IncidentState.STUCK]}, [3, 1]),
        ({"since": later(hours=1).utc}, [3, 2]),
    ],
)
def test_incidents_are_listed_newest_first_and_filtered(reader: Reader, filters: Any, numbers: list[int]) -> None:
    assert [one.id for one in reader.incidents(**filters)] == numbers


def test_one_incident_has_its_timeline_and_its_requests_in_order(reader: Reader) -> None:
    assert reader.incident(2) == incident(2, at=later(hours=1), subject="gpu:0000:17:00.0")
    assert reader.incident(99) is None
    assert [one.what for one in reader.events(1)] == ["opened", "resolved"]
    assert [one.request.id for one in reader.requests(1)] == ["1.9", "1.10"]
    assert [one.what for one in reader.newest_events(2)] == ["started", "resolved"]


def test_budgets_pauses_cursors_messages_and_memory_are_read(reader: Reader) -> None:
    assert reader.charges() == (charge(),)
    assert [one.target for one in reader.holds()] == ["*"]
    assert [one.position for one in reader.cursors()] == ["1"]
    assert [one.id for one in reader.messages()] == ["m"]
    assert reader.memory() == {"budgets": {"breaker": None}}


def test_it_reads_beside_a_daemon_that_writes(path: Path) -> None:
    async def both() -> list[int]:
        store = Store(path, clock=FakeClock())
        await store.open(SOON)
        with Reader(path) as reader:
            seen = [len(reader.charges())]
            await store.commit(charge("2.1"))
            seen.append(len(reader.charges()))
        await store.close(SOON)
        return seen

    assert asyncio.run(both()) == [1, 2]


KILLED = """
import asyncio, os, signal, sys
from datetime import timedelta
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from bandog.store import Store
from bandog.testing import FakeClock
from store_samples import charge
async def main():
    store = Store(Path(sys.argv[1]), clock=FakeClock())
    await store.open(timedelta(seconds=10))
    await store.commit(charge("7.1"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_it_reads_what_a_killed_daemon_left_in_its_journal(path: Path) -> None:
    here = Path(__file__)
    subprocess.run([sys.executable, "-c", KILLED, path, here.parent, here.parents[2]], check=False)
    assert path.with_name("bandog.db-wal").exists()
    with Reader(path) as reader:
        assert [one.request for one in reader.charges()] == ["1.1", "7.1"]


def test_it_reads_from_a_file_system_that_is_read_only(path: Path, loop_disk: Any) -> None:
    copy = loop_disk.mount / "bandog.db"
    shutil.copy(path, copy)
    subprocess.run(["mount", "-o", "remount,ro", str(loop_disk.mount)], check=True)
    with Reader(copy) as reader:
        assert len(reader.incidents()) == 3


def test_what_cannot_be_read_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreadable, match="there is no database yet; bandog makes it at its first start"):
        Reader(tmp_path / "bandog.db")
    assert not (tmp_path / "bandog.db").exists()
    (tmp_path / "bandog.db").write_bytes(b"odd" * 1000)
    with pytest.raises(StoreUnreadable, match="file is not a database"):
        Reader(tmp_path / "bandog.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreUnreadable, match="no such table"):
        Reader(tmp_path / "empty.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_anybody_but_root_is_told_to_use_sudo(path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from bandog.store.reader import Reader, StoreUnreadable\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: Reader(Path(sys.argv[1]))\n"
        "except StoreUnreadable as error: print(error)"
    )
    for folder in (path.parent, *path.parent.parents[:2]):
        folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout == f"{path}: only root may read it; try sudo\n", done.stderr
