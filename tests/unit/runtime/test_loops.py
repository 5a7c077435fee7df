"""What shall go on for ever does not end unsaid, and ends when it is told to."""

from __future__ import annotations

import asyncio

from bandog.runtime.loops import Loops
from bandog.testing import settle


async def _forever() -> None:
    await asyncio.Event().wait()


async def _broken() -> None:
    raise ValueError("the text may hold a secret")


def test_a_task_that_raises_is_named_and_the_others_go_on() -> None:
    told: list[tuple[str, str]] = []

    async def main() -> None:
        loops = Loops(lambda name, why: told.append((name, why)))
        loops.start(_forever(), "probe")
        loops.start(_broken(), "housekeeping")
        await settle()
        assert told == [("housekeeping", "ValueError; until a restart of the agent it does nothing")]
        await loops.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert len(told) == 1
