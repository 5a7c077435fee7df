"""A system bus with a small systemd1 on it, which knows the unit of the bench. FOLDER; ends with its input."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/host"))

from dbus_fast import Variant
from fake_systemd1 import FakeManager
from ground import UNIT


async def serve(folder: Path) -> None:
    """Answer until nobody needs it."""
    manager = FakeManager(folder)
    manager.units[UNIT] = {
        "org.freedesktop.systemd1.Unit": {
            "Id": Variant("s", UNIT),
            "LoadState": Variant("s", "loaded"),
            "ActiveState": Variant("s", "active"),
            "SubState": Variant("s", "running"),
            "ActiveEnterTimestampMonotonic": Variant("t", 5_000_000),
            "StateChangeTimestampMonotonic": Variant("t", 5_000_001),
        },
        "org.freedesktop.systemd1.Service": {"MainPID": Variant("u", 4242), "Result": Variant("s", "success")},
    }
    await manager.join_bus()
    print(json.dumps({"socket": str(manager.daemon.socket)}), flush=True)
    try:
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await manager.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
