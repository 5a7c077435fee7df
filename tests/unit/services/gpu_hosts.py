"""Hosts with GPUs, and a service on them, for tests of who gets which card."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bandog import GpuLook, Instant, Look
from bandog.services.registry import Service

NOW = Instant(boot_id="b", boottime=timedelta(hours=1), utc=datetime(2026, 11, 30, 12, tzinfo=UTC))
BUSES = ("17", "3d", "65", "e5")


def gpu(address: str, **fields: object) -> GpuLook:
    known = {"uuid": f"GPU-{address}", **fields}
    return GpuLook(address=address, **known)  # type: ignore[arg-type]  # a test names fields of the look


def host(*buses: str, **fields: object) -> Look:
    return Look(at=NOW, gpus=tuple(gpu(f"0000:{bus}:00.0", **fields) for bus in buses))


def service(*counts: int, gpus: str | tuple[str, ...] = "all", **profile: object) -> Service:
    profiles = tuple({"count": count, "env": {"TP_SIZE": str(count)}, **profile} for count in counts)
    return Service(name="qwen", unit="vllm-qwen.service", gpus=gpus, profiles=profiles)
