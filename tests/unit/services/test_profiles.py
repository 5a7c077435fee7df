"""The right cards, and the right numbers for them, whatever is missing and whatever order the tools use."""

from __future__ import annotations

import pytest
from gpu_hosts import BUSES, NOW, gpu, host, service
from hypothesis import given
from hypothesis import strategies as st

from bandog import Exclusion, GpuLook, KnownGpu, Look
from bandog.domain.subjects import pci_order
from bandog.services.profiles import Choice, Refusal, choose, cuda_order, numbered, reasons_of
from bandog.services.registry import Service


def chosen(*args: object, **more: object) -> Choice:
    choice = choose(*args, **more)  # type: ignore[arg-type]  # handed through
    assert isinstance(choice, Choice), choice
    return choice


def test_the_first_profile_that_the_healthy_cards_satisfy_is_taken() -> None:
    look = host(*BUSES)
    choice = chosen(service(4, 2), look, look.gpus)
    assert (choice.place, choice.indices) == (0, (0, 1, 2, 3))
    choice = chosen(service(4, 2), look, look.gpus[:3])
    assert (choice.place, choice.addresses, choice.indices) == (1, ("0000:17:00.0", "0000:3d:00.0"), (0, 1))
    assert choice.env == {
        "TP_SIZE": "2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "BANDOG_GPUS": "0000:17:00.0,0000:3d:00.0",
        "BANDOG_GPU_UUIDS": "GPU-0000:17:00.0,GPU-0000:3d:00.0",
    }


def test_a_card_that_is_missing_shifts_the_numbers_of_those_behind_it() -> None:
    look = host("17", "65", "e5")
    assert chosen(service(2, gpus=("0000:65:00.0", "0000:e5:00.0")), look, look.gpus).indices == (1, 2)


def test_a_card_that_is_lost_shifts_them_and_one_that_is_excluded_does_not() -> None:
    look = host(*BUSES)
    lost = Look(at=NOW, gpus=(gpu("0000:17:00.0", lost=True), *look.gpus[1:]))
    assert chosen(service(3), lost, lost.gpus[1:]).indices == (0, 1, 2)
    assert chosen(service(3), look, look.gpus, without={"0000:17:00.0"}).indices == (1, 2, 3)


def test_cudas_own_order_counts_where_it_is_known() -> None:
    look = host(*BUSES)
    choice = chosen(service(2), look, look.gpus[2:])
    assert choice.indices == (2, 3)
    assert numbered(choice, ["0000:65:00.0", "0000:e5:00.0"]).visible == "0,1"
    with pytest.raises(ValueError, match="not in"):
        numbered(choice, ["0000:65:00.0"])


def test_uuids_are_named_only_where_the_profile_says_so() -> None:
    look = host("17", "65")
    assert chosen(service(1), look, look.gpus).visible == "0"
    assert chosen(service(1, devices="uuid"), look, look.gpus).visible == "GPU-0000:17:00.0"


def test_too_few_healthy_cards_are_refused_with_what_is_needed_and_what_is_in_the_way() -> None:
    look = host("17", "e5")
    card = KnownGpu(
        uuid="GPU-0000:e5:00.0", slot="0000:e5:00.0", first_seen=NOW, last_seen=NOW,
        exclusions=(Exclusion(reason="Xid 94 twice within 24 h", by="incident 12", since=NOW),),
    )  # fmt: skip
    gone = KnownGpu(uuid="GPU-x", slot="0000:3d:00.0", first_seen=NOW, last_seen=NOW)
    refusal = choose(service(4, 2), look, look.gpus[:1], reasons=reasons_of(look, [card, gone]))
    assert isinstance(refusal, Refusal)
    assert refusal.why == (
        "qwen needs 2 healthy GPUs of the host for its smallest profile and has 1: 3d:00.0 is missing; "
        "e5:00.0 is excluded since 2026-11-30 12:00 UTC: Xid 94 twice within 24 h"
    )
    assert (refusal.needs, refusal.has) == (2, 1)


@pytest.mark.parametrize("one", [service(gpus="all"), service(2, gpus=())], ids=["no profiles", "no gpus"])
def test_a_service_without_profiles_or_gpus_is_refused(one: Service) -> None:
    look = host(*BUSES)
    assert isinstance(choose(one, look, look.gpus), Refusal)


def test_a_card_in_slices_makes_numbers_unknown_and_is_never_taken() -> None:
    look = Look(at=NOW, gpus=(gpu("0000:17:00.0", mig=True), gpu("0000:65:00.0")))
    refusal = choose(service(1), look, look.gpus)
    assert isinstance(refusal, Refusal) and "MIG" in refusal.why
    assert chosen(service(1, devices="uuid"), look, look.gpus).visible == "GPU-0000:65:00.0"
    both = choose(service(2, devices="uuid"), look, look.gpus)
    assert isinstance(both, Refusal) and "17:00.0 is partitioned (MIG)" in both.why


def test_one_numa_node_is_preferred_where_nothing_else_joins_the_cards() -> None:
    look = Look(
        at=NOW, gpus=tuple(gpu(f"0000:{bus}:00.0", numa=node) for bus, node in zip(BUSES, (0, 1, 0, 1), strict=True))
    )
    assert chosen(service(2), look, look.gpus).indices == (0, 2)


@st.composite
def hosts(draw: st.DrawFn) -> tuple[Look, list[GpuLook], set[str], list[list[str]]]:
    """A host with some cards lost, some not usable, in any order of NVML's, in islands."""
    buses = draw(st.lists(st.integers(1, 255), min_size=1, max_size=10, unique=True))
    domains = draw(st.lists(st.sampled_from(["0000", "0001", "10000"]), min_size=len(buses), max_size=len(buses)))
    addresses = [f"{domain}:{bus:02x}:00.0" for domain, bus in zip(domains, buses, strict=True)]
    states = draw(
        st.lists(st.sampled_from(["ok", "ok", "lost", "mute", "out"]), min_size=len(buses), max_size=len(buses))
    )
    island = draw(st.lists(st.integers(0, 2), min_size=len(buses), max_size=len(buses)))
    gpus = [
        gpu(address, index=place, numa=draw(st.sampled_from([None, 0, 1])), lost=state == "lost")
        if state != "mute"
        else GpuLook(address=address, index=place)
        for place, (address, state) in enumerate(zip(addresses, states, strict=True))
    ]
    islands = [[a for a, i in zip(addresses, island, strict=True) if i == number] for number in range(3)]
    peers = tuple((a, b) for group in islands for at, a in enumerate(group) for b in group[at + 1 :])
    usable = [one for one, state in zip(gpus, states, strict=True) if state == "ok"]
    return Look(at=NOW, gpus=tuple(gpus), peers=peers), usable, set(addresses), islands


@given(hosts(), st.integers(1, 8), st.data())
def test_the_chosen_are_healthy_whole_and_numbered_as_cuda_counts(
    made: tuple[Look, list[GpuLook], set[str], list[list[str]]], count: int, data: st.DataObject
) -> None:
    look, usable, addresses, islands = made
    without = data.draw(st.sets(st.sampled_from(sorted(addresses))))
    choice = choose(service(count), look, usable, without=without)
    fit = {one.address for one in usable} - without
    if isinstance(choice, Refusal):
        assert len(fit) < count
        return
    assert len(choice.gpus) == count and set(choice.addresses) <= fit
    assert list(choice.addresses) == sorted(choice.addresses, key=pci_order)
    # What CUDA does with the variable: the cards it sees, in PCI order, picked by number.
    seen = sorted((one.address for one in look.gpus if one.uuid and not one.lost), key=pci_order)
    assert tuple(seen[int(one)] for one in choice.visible.split(",")) == choice.addresses
    assert cuda_order(look) == tuple(seen)
    if any(len(fit & set(group)) >= count for group in islands):
        assert any(set(choice.addresses) <= set(group) for group in islands)
