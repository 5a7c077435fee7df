"""The real daemon and its cards: what it was told of a card is in messages, in status, and there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bandog import GpuLook, Look
from simhost.stage import Stage

XID = "NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No"
CARD = GpuLook(address="0000:e5:00.0", uuid="GPU-5a", serial="16530", part_number="900-21010", name="NVIDIA H200")


def test_a_card_is_named_in_messages_kept_out_and_remembered(stage: Callable[..., Stage]) -> None:
    host = stage()

    async def story() -> None:
        async with host.running() as daemon:
            daemon.site.gpus.take(Look(at=daemon.clock.now(), gpus=(CARD,)))
            host.kernel.print(XID)
            await host.until(lambda: any("serial 16530" in one["message"] for one in host.sink.messages), 30)
            assert any("History: 1 Xid 94 since" in one["message"] for one in host.sink.messages)
            await daemon.gpus.exclude("0000:E5:00", "second Xid 94", "ann")
        async with host.running() as daemon:
            [line] = daemon.house.status()["gpus"]
            assert line["serial"] == "16530" and line["health"] == "unknown: not looked at yet"
            assert line["exclusion"]["by"] == "ann" and line["history"].startswith("1 Xid 94 since")
            daemon.site.gpus.take(Look(at=daemon.clock.now(), gpus=(CARD,)))
            assert daemon.site.gpus.usable() == ()

    asyncio.run(story())
