"""Which GPUs CUDA would show: the traps of indices that a choice of GPUs has to survive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakevllm.cards import Cards


def cards(root: Path, *gpus: dict[str, Any]) -> Cards:
    """Return the GPUs of a state file with these entries, each completed."""
    whole = [{"memory": {"total": 100, "used": 0}, **one} for one in gpus]
    (root / "state.json").write_text(json.dumps({"gpus": whole}))
    return Cards(root / "state.json")


def gpu(name: str, bus: int, **more: Any) -> dict[str, Any]:
    return {"uuid": name, "pci": f"0000:{bus:02X}:00.0", **more}


FOUR = (gpu("d", 0xE5, clock_max=9), gpu("a", 0x0A), gpu("b", 0x15, clock_max=5), gpu("c", 0xC1, missing=True))


def test_the_order_is_of_addresses_or_of_speed(tmp_path: Path) -> None:
    four = cards(tmp_path, *FOUR)
    assert four.visible({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ["a", "b", "d"]
    assert four.visible({}) == ["d", "b", "a"]
    assert four.visible({"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ["d", "a"]


def test_a_missing_gpu_shifts_those_behind_it(tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert cards(tmp_path, gpu("a", 1), gpu("b", 2)).visible(env) == ["b"]
    assert cards(tmp_path, gpu("a", 1, missing=True), gpu("b", 2), gpu("c", 3)).visible(env) == ["c"]


@pytest.mark.parametrize("entry", ["GPU-d", "MIG-1", "", "0,", "x"])
def test_an_entry_that_is_no_number_ends_vllm(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ValueError, match="invalid literal for int"):
        cards(tmp_path, *FOUR).visible({"CUDA_VISIBLE_DEVICES": f"0,{entry}"})


@settings(deadline=None)  # a busy disk
@given(listed=st.lists(st.integers(-1, 9), max_size=6), count=st.integers(0, 6))
def test_an_entry_without_a_gpu_hides_all_after_it(
    tmp_path_factory: pytest.TempPathFactory, listed: list[int], count: int
) -> None:
    there = cards(tmp_path_factory.mktemp("gpus"), *(gpu(str(place), place) for place in range(count)))
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, listed))}
    good = next((place for place, one in enumerate(listed) if not 0 <= one < count), len(listed))
    expected = [str(one) for one in listed[:good]]
    assert there.visible(env) == (expected if len(set(expected)) == len(expected) else [])


def test_memory_is_shared_with_whoever_the_story_or_a_claim_names(tmp_path: Path) -> None:
    one = gpu("a", 1, memory={"total": 100, "used": 10}, processes=[{"pid": 1, "memory": 20}, {"pid": 2}])
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/1").write_text("a 30\nb 500\n")
    (tmp_path / "claims/999999999").write_text("a 30\n")  # nobody's any more
    hold = cards(tmp_path, one).hold("a")
    assert hold.free() == 40
    assert (hold.take(41), hold.take(40)) == (False, True)
    assert hold.free() == 40
    hold.release()


def test_a_file_in_the_middle_of_a_change_changes_nothing(tmp_path: Path) -> None:
    four = cards(tmp_path, *FOUR)
    assert len(four.all()) == 3
    (tmp_path / "state.json").write_text('{"gpus": [')
    assert len(four.all()) == 3
