"""The preflight's child, unmodified, over fake libraries of NVML and CUDA: what it says, and how far it came."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

import fakecuda
import fakenvml
from bandog import ChildOutcome
from bandog.host.child import Children
from bandog.testing import FakeHost, FakeSite
from bandog_plugins.actions import _preflight

CARDS = ("0000:17:00.0", "0000:3d:00.0", "0000:65:00.0")


@dataclass
class Living(FakeSite):
    """A fake site whose children are real ones."""

    made: Children = field(default_factory=lambda: Children(term_grace=timedelta(milliseconds=300)))
    patience: timedelta = timedelta(seconds=20)

    def child(
        self,
        argv: Sequence[str],
        *,
        deadline: timedelta,
        stdin: bytes = b"",
        limit: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> ChildOutcome:
        return self.made.run(argv, deadline=min(deadline, self.patience), stdin=stdin, limit=limit, env=env)


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the fake CUDA library, compiled once."""
    return fakecuda.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Living]:
    one = Living(FakeHost(tmp_path / "host"))
    yield one
    one.made.close()


def env(folder: Path, **more: str) -> dict[str, str]:
    cards = ",".join(one.removesuffix(".0") for one in CARDS)
    return {"LD_LIBRARY_PATH": str(folder), "FAKECUDA_CARDS": cards, **more}


def test_a_look_is_a_round_of_nvml_and_goes_to_the_inventory(site: Living, tmp_path: Path, nvml: Path) -> None:
    state = fakenvml.State(tmp_path / "state", 4)
    assert [one.lost for one in _preflight.look(site, state.env(nvml)).gpus] == [False] * 4
    state.change({"gpus.2.lost": True})
    look = _preflight.look(site, state.env(nvml))
    assert {one.address for one in look.gpus if one.lost} == {"0000:e5:00.0"}
    assert site.gpus.look() == look
    assert len(site.gpus.known()) == 4 and len(site.gpus.usable()) == 3


def test_a_driver_that_refuses_is_silent_in_its_own_words(site: Living, tmp_path: Path, nvml: Path) -> None:
    state = fakenvml.State(tmp_path / "state", 4)
    state.change({"init": 9})
    with pytest.raises(_preflight.Silent, match=r"the driver refuses: .*[Dd]river"):
        _preflight.look(site, state.env(nvml))


def test_a_call_of_nvml_that_never_returns_is_given_up(site: Living, tmp_path: Path, nvml: Path) -> None:
    state = fakenvml.State(tmp_path / "state", 4)
    state.change({"calls.nvmlDeviceGetUUID.hang": True})
    site.patience = timedelta(seconds=1)
    with pytest.raises(_preflight.Silent, match="no answer within"):
        _preflight.look(site, state.env(nvml))


def test_each_card_computes_and_cuda_tells_its_own_order(site: Living, cuda: Path) -> None:
    tried = _preflight.trial(site, CARDS[1:], env(cuda))
    assert tried.order == CARDS and tried.remark == ""


def test_without_the_library_nothing_is_tried_and_that_is_said(site: Living, tmp_path: Path) -> None:
    if any(Path(folder, "libcuda.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")):
        pytest.skip("CUDA is installed on this machine")
    tried = _preflight.trial(site, CARDS, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert tried.order is None and "not installed" in tried.remark


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"FAKECUDA_FAIL": "cuInit@0=999"}, r"CUDA does not compute: cuInit: unknown error \(999\)"),
        ({"FAKECUDA_FAIL": "cuDevicePrimaryCtxRetain@1=719"}, r"0000:3d:00.0 does not compute: .* failed \(719\)"),
        ({"FAKECUDA_FAIL": "cuModuleLoadData@2=222"}, r"0000:65:00.0 does not compute: cuModuleLoadData"),
        ({"FAKECUDA_WRONG": "1"}, "0000:3d:00.0 does not compute: what was computed is wrong"),
    ],
)
def test_a_card_that_does_not_compute_is_named(site: Living, cuda: Path, more: dict[str, str], words: str) -> None:
    with pytest.raises(_preflight.Silent, match=words):
        _preflight.trial(site, CARDS, env(cuda, **more))


def test_a_card_that_cuda_does_not_see_is_named(site: Living, cuda: Path) -> None:
    with pytest.raises(_preflight.Silent, match=r"0000:e5:00\.0 does not compute: CUDA does not see it"):
        _preflight.trial(site, ("0000:e5:00.0",), env(cuda))


@pytest.mark.parametrize("fault", ["cuMemAlloc_v2@1=2", "cuDevicePrimaryCtxRetain@1=46"])
def test_a_card_whose_memory_the_service_still_holds_is_not_condemned(site: Living, cuda: Path, fault: str) -> None:
    tried = _preflight.trial(site, CARDS, env(cuda, FAKECUDA_FAIL=fault))
    assert tried.order == CARDS and tried.remark == "0000:3d:00.0 could not be tried: its memory is taken"


def test_the_card_on_which_a_call_never_returns_is_named(site: Living, cuda: Path) -> None:
    site.patience = timedelta(seconds=4)
    with pytest.raises(_preflight.Silent, match=r"the trial with CUDA on 0000:65:00\.0: the driver gives no answer"):
        _preflight.trial(site, CARDS, env(cuda, FAKECUDA_HANG="cuLaunchKernel@2"))


def test_a_trial_that_the_kernel_kills_for_memory_says_nothing_of_the_cards(site: Living) -> None:
    killed = ChildOutcome(code=-9, out=json.dumps({"order": list(CARDS)}).encode() + b"\n")

    class Killed(Living):
        def child(self, *_: object, **__: object) -> ChildOutcome:  # type: ignore[override]
            return killed

    tried = _preflight.trial(Killed(site.host), CARDS, {})
    assert tried.order == CARDS and "was killed" in tried.remark
