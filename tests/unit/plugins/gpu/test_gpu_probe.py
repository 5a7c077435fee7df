"""The whole probe: each finding raised and cleared by what the driver says, and every way in which it says nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from gpu_bench import Bench

from bandog import Finding, Unknown, subjects
from bandog.testing import FakeHost
from bandog_plugins.detectors.gpu import Gpu, GpuOptions, NotTold

AT_WORK = {"util": 97, "throttle": 0}


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        pause.wait(0.01)


def work(bench: Bench, place: int = 2, **values: Any) -> None:
    """Let one GPU work, with further values."""
    bench.change(**{f"gpus__{place}__{key}": value for key, value in {**AT_WORK, **values}.items()})


def test_gpus_that_are_well_raise_nothing(bench: Bench) -> None:
    assert bench.poll(4).answer == []
    assert [one.slot for one in bench.site.gpus.known()] == [bench.address(place) for place in range(4)]
    assert (bench.rounds.rounds, bench.child.started) == (4, 1)


@pytest.mark.parametrize(
    ("kind", "raise_", "clear", "facts"),
    [
        ("gpu.lost", {"lost": True}, {"lost": False}, {"reason": "gpu-is-lost", "text": "GPU is lost"}),
        ("gpu.recovery-needed", {"recovery": 2}, {"recovery": 0}, {"recovery": "reboot"}),
        ("gpu.row-remap-pending", {"rows__pending": True}, {"rows__pending": False}, {"remapped": 0}),
        ("gpu.row-remap-failed", {"rows__failed": True}, {"rows__failed": False}, {"remapped": 0, "pending": False}),
        (
            "gpu.ecc-uncorrected",
            {"ecc__uncorrected": 3},
            {"ecc__uncorrected": 0},
            {"count": 3, "total": 3, "corrected": 0},
        ),
    ],
)
def test_a_state_of_the_driver_is_raised_and_cleared(
    bench: Bench, kind: str, raise_: dict[str, Any], clear: dict[str, Any], facts: dict[str, Any]
) -> None:
    bench.poll()
    bench.change(**{f"gpus__2__{key}": value for key, value in raise_.items()})
    card = bench.state.read()["gpus"][2]
    papers = {name: card[name] for name in ("uuid", "serial", "name", "part_number")}
    assert bench.poll().raised(kind, 2) == papers | facts
    assert bench.raised(kind, 1) is None
    bench.change(**{f"gpus__2__{key}": value for key, value in clear.items()})
    assert bench.poll().answer == []


def test_throttled_clocks(bench: Bench) -> None:
    work(bench, throttle=0x8 | 0x80, clock=600, power=650_000)
    raised = bench.poll(13).raised("gpu.throttled", 2)
    assert isinstance(raised, dict)
    assert {key: raised[key] for key in ("reasons", "seconds", "sm_clock", "power", "power_limit")} == {
        "reasons": ("hw_slowdown", "hw_power_brake_slowdown"),
        "seconds": 120,
        "sm_clock": 600,
        "power": 650,
        "power_limit": 700,
    }
    work(bench)
    assert bench.poll(3).answer == []


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"pcie__width": 8}, "pcie-width"),
        ({"pcie__generation": 3}, "pcie-generation"),
        ({"links__4": False}, "nvlink"),
    ],
)
def test_degraded_links(bench: Bench, values: dict[str, Any], what: str) -> None:
    work(bench)
    bench.poll()
    before = bench.state.read()
    bench.change(**{f"gpus__2__{key}": value for key, value in values.items()})
    raised = bench.poll(3).raised("gpu.link-degraded", 2)
    assert isinstance(raised, dict)
    assert raised["what"] == (what,)
    bench.state.write(before)
    assert bench.poll().answer == []


def test_a_missing_card_shifts_the_indices_of_the_others_and_nothing_else(bench: Bench) -> None:
    bench.poll()
    bench.change(gpus__1__missing=True, gpus__2__recovery=1)
    bench.poll(3)
    assert bench.look(2).index == 1
    assert [(one.kind, one.subject) for one in bench.answer if isinstance(one, Finding)] == [
        ("gpu.recovery-needed", subjects.gpu(bench.address(2))),
        ("gpu.missing", subjects.gpu(bench.address(1))),
    ]
    missing = bench.raised("gpu.missing", 1)
    assert isinstance(missing, dict)
    assert (missing["serial"], missing["expected"], missing["seen"]) == ("1650000000001", 4, 3)
    bench.change(gpus__1__missing=False, gpus__2__recovery=0)
    assert bench.poll().answer == []


def test_a_card_that_was_lost_before_the_first_look_is_found_at_its_place(bench: Bench) -> None:
    bench.change(gpus__3__lost=True)
    bench.site.host.write(f"/sys/bus/pci/drivers/nvidia/{bench.address(3)}/uevent", "")
    assert isinstance(bench.poll().raised("gpu.lost", 3), dict)


def test_a_lost_card_keeps_the_others_watched(bench: Bench) -> None:
    bench.poll()
    bench.change(gpus__0__lost=True, gpus__3__recovery=1)
    bench.poll()
    assert isinstance(bench.raised("gpu.lost", 0), dict)
    assert isinstance(bench.raised("gpu.recovery-needed", 3), dict)


def test_an_error_of_one_call_makes_one_thing_unknown(bench: Bench) -> None:
    bench.poll()
    bench.change(gpus__1__errors__nvmlDeviceGetRemappedRows=999)
    bench.poll()
    assert {(one.kind, type(one)) for one in bench.answer} == {
        ("gpu.row-remap-pending", Unknown),
        ("gpu.row-remap-failed", Unknown),
    }


@pytest.mark.parametrize("code", [9, 4, 999])
def test_a_driver_that_refuses_raises_nothing_and_the_probe_is_blind(bench: Bench, code: int) -> None:
    bench.poll()
    bench.change(init=code)
    for _ in range(3):
        with pytest.raises(NotTold):
            bench.poll()
    bench.site.clock.advance(timedelta(minutes=1))
    bench.change(init=0)
    assert bench.poll().answer == []


def test_a_mismatch_is_raised_and_cleared(bench: Bench) -> None:
    bench.site.host.write("/sys/module/nvidia/version", "550.54.15\n")
    bench.change(driver="550.54.15")
    raised = bench.poll().raised("gpu.driver-mismatch")
    assert raised == {"driver": "550.54.15", "answers": False}
    assert bench.raised("gpu.driver-hung") is None
    bench.change(library="550.54.15")
    bench.site.clock.advance(timedelta(minutes=1))
    assert bench.poll().answer == []


def test_a_call_that_never_returns_is_a_hung_driver_and_its_child_is_killed(bench: Bench) -> None:
    bench.poll()
    pid = bench.child.pid
    bench.change(calls__nvmlDeviceGetPowerUsage__hang=True)
    raised = bench.poll().raised("gpu.driver-hung")
    assert isinstance(raised, dict)
    assert raised["stuck"] is False
    assert (bench.child.pid, _alive(pid)) == (None, False)
    # A minute in which the driver is left alone.
    assert isinstance(bench.poll(5).raised("gpu.driver-hung"), dict)
    assert bench.child.started == 1
    bench.change(calls__nvmlDeviceGetPowerUsage__hang=False)
    assert bench.poll().answer == []
    assert bench.child.started == 2


def test_a_slow_call_is_waited_for(bench: Bench) -> None:
    bench.poll()
    bench.change(calls__nvmlInitWithFlags__slow_ms=300)
    assert bench.poll().answer == []


def test_a_child_that_even_sigkill_does_not_end_is_never_doubled(bench: Bench, loop_disk: Any) -> None:
    """The real thing: a call into a driver that waits in the kernel and cannot be ended."""
    bench.poll()
    pid = bench.child.pid
    loop_disk.freeze()
    bench.change(calls__nvmlDeviceGetUUID__write_to=str(loop_disk.mount / "x"))
    try:
        raised = bench.poll().raised("gpu.driver-hung")
        assert isinstance(raised, dict)
        assert raised["stuck"] is True
        assert _state(pid) == "D"
        for seconds in range(10, 200, 10):
            raised = bench.poll().raised("gpu.driver-hung")
            assert isinstance(raised, dict)
            assert raised["seconds"] == seconds
        assert (bench.child.started, bench.site.made.abandoned, _state(pid)) == (1, 1, "D")
    finally:
        bench.change(calls__nvmlDeviceGetUUID__write_to=None)
        loop_disk.thaw()
    until(lambda: not bench.child.stuck)
    assert bench.poll().answer == []
    assert bench.child.started == 2


def test_a_child_in_d_state_that_sigkill_ends_is_ended(bench: Bench, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench.poll()
    bench.change(calls__nvmlDeviceGetUUID__d_state=str(fifo))
    raised = bench.poll().raised("gpu.driver-hung")
    assert isinstance(raised, dict)
    assert raised["stuck"] is False


def test_a_child_that_is_killed_is_started_again(bench: Bench) -> None:
    bench.poll()
    assert bench.child.pid is not None
    os.kill(bench.child.pid, signal.SIGKILL)
    with pytest.raises(NotTold, match="by signal 9"):
        bench.poll()
    assert bench.poll().answer == []
    assert bench.child.started == 2


def test_what_a_library_prints_does_not_disturb_the_answers(bench: Bench) -> None:
    """Rubbish on the descriptor of the answers ends the child; the library's own prints never get there."""
    bench.poll()
    pid = bench.child.pid
    with Path(f"/proc/{pid}/fd/1").open("w") as stdout:
        stdout.write("NVML: hello\n")
    assert bench.poll().answer == []
    answers = next(
        one for one in Path(f"/proc/{pid}/fd").iterdir() if int(one.name) > 2 and "pipe:" in str(one.readlink())
    )
    with answers.open("w") as file:
        file.write("rubbish\n")
    with pytest.raises(NotTold, match="rubbish"):
        bench.poll()
    assert bench.poll().answer == []
    assert bench.child.started == 2


def test_without_persistence_mode_the_polls_between_keep_what_was_known(bench: Bench) -> None:
    bench.change(gpus__0__persistence=False, gpus__1__recovery=1)
    assert isinstance(bench.poll().raised("gpu.recovery-needed", 1), dict)
    for _ in range(5):
        assert {type(one) for one in bench.poll().answer} == {Unknown}
    assert isinstance(bench.poll().raised("gpu.recovery-needed", 1), dict)


def test_a_host_without_a_driver_has_no_such_probe(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    assert Gpu().unsupported(host) == "no NVIDIA driver"
    host.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libfoo.so.1\0")
    assert Gpu().unsupported(host) == "no NVIDIA driver"
    assert Gpu(GpuOptions(environment={"LD_LIBRARY_PATH": "/run/nvidia/driver/usr/lib"})).unsupported(host) is None
    host.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0")
    assert Gpu().unsupported(host) is None
    host.paths.at("/etc/ld.so.cache").unlink()
    host.write("/proc/driver/nvidia/version", "")
    assert Gpu().unsupported(host) is None


def _state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _alive(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()
