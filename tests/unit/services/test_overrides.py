"""What is in force for a unit: written whole, read back, dropped, and put in force again at boot."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_hosts import NOW, gpu, host, service
from systemd_env import parsed

from bandog import Exclusion, KnownGpu, Look
from bandog.services import overrides
from bandog.services.profiles import Choice, Refusal, choose
from bandog.services.registry import Service

QWEN = service(4, 2)
FOUR = host("17", "3d", "65", "e5")
E5 = "0000:e5:00.0"


def without_e5() -> Choice:
    choice = choose(QWEN, FOUR, FOUR.gpus[:3])
    assert isinstance(choice, Choice)
    return choice


def card(address: str, *, out: bool = False) -> KnownGpu:
    exclusions = (Exclusion(reason="Xid 94", by="incident 12", since=NOW),) if out else ()
    return KnownGpu(uuid=f"GPU-{address}", slot=address, first_seen=NOW, last_seen=NOW, exclusions=exclusions)


def test_what_is_put_in_force_is_read_back_with_its_reason(tmp_path: Path) -> None:
    put = overrides.put(tmp_path, QWEN, without_e5(), without=[E5], at=NOW, incident=12, env={"NCCL_P2P_DISABLE": "1"})
    assert overrides.in_force(tmp_path, QWEN.unit) == put
    assert str(put) == (
        "runs on 2 GPUs (17:00.0, 3d:00.0) without e5:00.0 with NCCL_P2P_DISABLE set since 2026-11-30 12:00 UTC, "
        "by incident 12"
    )
    place = tmp_path / "env" / "vllm-qwen.service.env"
    assert parsed(place.read_text()) == {
        "TP_SIZE": "2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "BANDOG_GPUS": "0000:17:00.0,0000:3d:00.0",
        "BANDOG_GPU_UUIDS": "GPU-0000:17:00.0,GPU-0000:3d:00.0",
        "NCCL_P2P_DISABLE": "1",
    }


def test_the_file_is_roots_alone_and_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    for _ in range(2):
        overrides.put(tmp_path, QWEN, without_e5(), without=[E5], at=NOW)
    (place,) = (tmp_path / "env").iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_what_cannot_be_written_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    overrides.put(tmp_path, QWEN, without_e5(), without=[E5], at=NOW)
    place = overrides.path_of(tmp_path, QWEN.unit)
    before = place.read_text()
    with pytest.raises(ValueError, match="LD"):
        overrides.put(tmp_path, QWEN, None, without=[], at=NOW, env={"LD": "a\0"})
    with pytest.raises(ValueError, match="bandog itself"):
        overrides.put(tmp_path, QWEN, None, without=[], at=NOW, env={"CUDA_VISIBLE_DEVICES": "3"})
    place.with_name(f".{place.name}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        overrides.put(tmp_path, QWEN, None, without=[], at=NOW, env={"A": "b"})
    assert place.read_text() == before


def test_a_dropped_one_is_gone_and_dropping_twice_is_dropping_once(tmp_path: Path) -> None:
    overrides.put(tmp_path, QWEN, without_e5(), without=[E5], at=NOW)
    assert overrides.drop(tmp_path, QWEN.unit)
    assert not overrides.drop(tmp_path, QWEN.unit)
    assert overrides.in_force(tmp_path, QWEN.unit) is None


@pytest.mark.parametrize("text", ["", "A=1\n", "# bandog: {}\n", "# bandog: [1]\n", "# bandog: " + "[" * 9999, "\xff"])
def test_a_file_of_somebody_else_is_in_force_without_a_reason(tmp_path: Path, text: str) -> None:
    place = overrides.path_of(tmp_path, QWEN.unit)
    place.parent.mkdir()
    place.write_text(text)
    found = overrides.in_force(tmp_path, QWEN.unit)
    assert found is not None and found.gpus == ()
    assert str(found).startswith("runs with an environment of bandog since ")


def test_a_units_file_has_a_name_that_is_no_pattern(tmp_path: Path) -> None:
    assert overrides.path_of(tmp_path, r"vllm\x2dqwen@0.service").name == "vllm+x2dqwen@0.service.env"
    for name in ("", "../x.service", "a/b.service", "a+b.service", ".hidden", "ä.service"):
        with pytest.raises(ValueError, match="no unit"):
            overrides.path_of(tmp_path, name)


def boot(tmp_path: Path, look: Look, *cards: KnownGpu, one: Service = QWEN) -> overrides.Override | Refusal | None:
    usable = [gpu for gpu in look.gpus if not any(card.uuid == gpu.uuid and not card.usable for card in cards)]
    return overrides.reapply(one, look=look, usable=usable, known=cards, run=tmp_path, at=NOW)


ALL = [card(one.address) for one in FOUR.gpus]


def test_a_boot_with_every_card_in_use_needs_no_override(tmp_path: Path) -> None:
    assert boot(tmp_path, FOUR, *ALL) is None
    assert boot(tmp_path, FOUR, *ALL[:3], card(E5, out=True), one=replace(QWEN, profiles=())) is None
    mine = service(2, gpus=("0000:17:00.0", "GPU-0000:3d:00.0"))
    assert boot(tmp_path, FOUR, *ALL[:3], card(E5, out=True), one=mine) is None, "another's card is out"
    assert not (tmp_path / "env").exists()


def test_a_boot_with_a_card_out_or_missing_starts_the_service_without_it(tmp_path: Path) -> None:
    found = boot(tmp_path, FOUR, *ALL[:3], card(E5, out=True))
    assert isinstance(found, overrides.Override) and found.without == (E5,) and found.place == 1
    assert str(found).endswith(", as found at boot")
    overrides.drop(tmp_path, QWEN.unit)
    found = boot(tmp_path, host("17", "3d", "65"), *ALL)
    assert isinstance(found, overrides.Override) and found.without == (E5,) and len(found.gpus) == 2


def test_what_is_in_force_and_still_holds_is_left_alone(tmp_path: Path) -> None:
    put = overrides.put(tmp_path, QWEN, without_e5(), without=[E5], at=NOW, incident=12)
    assert boot(tmp_path, FOUR, *ALL[:3], card(E5, out=True)) == put
    changed = boot(tmp_path, FOUR, card("0000:17:00.0", out=True), *ALL[1:3], card(E5, out=True))
    assert isinstance(changed, overrides.Override) and changed.gpus == ("0000:3d:00.0", "0000:65:00.0")


def test_too_few_cards_at_boot_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    assert isinstance(boot(tmp_path, host("17"), *ALL), Refusal)
    assert not (tmp_path / "env").exists()


def test_a_card_that_does_not_answer_counts_as_out(tmp_path: Path) -> None:
    look = Look(at=NOW, gpus=(*FOUR.gpus[:3], gpu(E5, lost=True)))
    found = overrides.reapply(QWEN, look=look, usable=look.gpus[:3], known=ALL, run=tmp_path, at=NOW)
    assert isinstance(found, overrides.Override) and found.without == (E5,)
