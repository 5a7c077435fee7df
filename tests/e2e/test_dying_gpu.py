"""The story of a dying GPU, by the shipped policies: the real daemon, its probe over a fake driver library, and a
model server that takes its GPUs seriously (DESIGN.md, decisions 33 to 36).

A host's clock runs ten times as fast as ours, so that the probe's look every 10 s comes each second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

import pytest

import fakenvml
from bandog import overrides
from bandog.domain.gpus import KnownGpu
from bandog.domain.model import IncidentState, StepState
from bandog.store.reader import Reader, StoreUnreadable
from simhost.scene import Scene, Story
from simhost.served import Served
from simhost.world import World

RATE = 10.0
SHIPPED = Path(__file__).parents[2] / "policies"
FIRST, SECOND, THIRD, FOURTH = (f"0000:{bus}:00.0" for bus in fakenvml.ADDRESSES[4])
ALL = {FIRST, SECOND, THIRD, FOURTH}
CONTAINED = "NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No"
REMAPPED = "NVRM: Xid (PCI:0000:e5:00): 63, Row Remapper: New row (0x00000012ab34c0{row:02x}) marked for remapping, "
OFF_THE_BUS = "NVRM: Xid (PCI:0000:e5:00): 79, GPU has fallen off the bus."
OBSERVE = 'mode: observe\nnotify: {oncall: {urls: "{sink}"}}\n'
LIBRARY = "nvml"


class Host:
    """A world that serves one model on four GPUs; only `policies` of the shipped ones, by their numbers, are there.

    The model serves once it has been made; the agent runs from `begin` on.
    """

    def __init__(self, scene: Scene, policies: Collection[int], *, targets: str | None = None) -> None:
        self.served = Served(scene.root / "cards", build=scene.root.parent / LIBRARY)
        texts = {file.stem: file.read_text() for file in SHIPPED.glob("*.yaml") if int(file.stem[:3]) in policies}
        assert len(texts) == len(policies)
        main = self.served.plugins
        self.world: World = scene.world(policies=texts, services=0, rate=RATE, main=main, targets=targets)
        for one in self.served.cards.read()["gpus"]:
            place = self.world.root / "sys/bus/pci/devices" / one["pci"]
            place.mkdir(parents=True)
            (place / "numa_node").write_text(f"{one['numa']}\n")
        self.world.write("etc/services.d/qwen.yaml", self.served.service_file)
        self.served.boot(self.world.systemd, self.world.root / "run")

    def begin(self) -> None:
        """Start the agent; what the kernel prints from here on counts."""
        self.world.settle_in()
        self.world.until(lambda: len(self.cards()) == 4, alive=True)

    def later(self, by: timedelta) -> None:
        """Let time pass without the agent, once people have been told all that there was to tell."""
        self.world.until(lambda: self.world.spooled() == 0, alive=True)
        self.world.stop()
        self.world.later(by)
        self.world.start()

    def cards(self) -> dict[str, KnownGpu]:
        """Return what is on record of each card, by its slot."""
        try:
            with Reader(self.world.state / "bandog.db") as reader:
                return {one.slot: one for one in reader.gpus()}
        except StoreUnreadable:
            return {}

    def until_history(self, address: str, lines: int) -> None:
        """Wait until as many lines are on record of a card's past."""

        def there() -> bool:
            with Reader(self.world.state / "bandog.db") as reader:
                return len(reader.gpu_events(self.cards()[address].uuid)) >= lines

        self.world.until(there, alive=True)

    def steps(self, policy: str) -> list[tuple[str, StepState]]:
        """Return the steps on record of a policy's incidents, with how they stand."""
        numbers = {one.id for one in self.world.incidents() if one.policy == policy}
        return [(one.request.action, one.state) for one in self.world.requests() if one.request.incident in numbers]

    def until_step(self, policy: str, action: str, state: StepState = StepState.PROVED, times: int = 1) -> None:
        """Wait until as many steps have ended so; AssertionError with how each has ended if they do not."""
        try:
            self.world.until(lambda: self.steps(policy).count((action, state)) == times, 40, alive=True)
        except AssertionError as error:
            ends = "\n".join(f"{one.request.id} {one.request.action}: {one.why}" for one in self.world.requests())
            raise AssertionError(f"{error}\n{ends}\n{self.served.log[-4000:]}") from None

    def told_of(self, words: str) -> list[str]:
        """Return the messages with these words, awaited."""
        self.world.until(lambda: self.world.told(words), alive=True)
        return self.world.told(words)

    def visible(self) -> str | None:
        """Return the CUDA_VISIBLE_DEVICES that is in force for the unit."""
        place = overrides.path_of(self.world.root / "run", self.served.unit)
        lines = place.read_text().splitlines() if place.exists() else []
        return next((line.partition("=")[2].strip("'\"") for line in lines if line.startswith("CUDA_VISIBLE")), None)


def weeks_of_remapped_rows_then_a_second_contained_error_leaves_the_card_out(scene: Scene) -> None:
    host = Host(scene, {124, 134})
    world = host.world
    host.begin()
    for row in range(3):
        world.kernel.print(REMAPPED.format(row=row) + "reset gpu to activate.")
        host.until_history(THIRD, row + 1)
        host.later(timedelta(days=9))
    assert world.jobs() == Counter() and host.served.held == ALL, "a remapped row is only noted"
    world.kernel.print(CONTAINED)
    host.until_step("xid-94-contained-ecc", "restart")
    assert host.served.held == ALL, "the first error restarts the service as it was"
    host.later(timedelta(hours=2))
    world.kernel.print(CONTAINED)
    host.until_step("xid-94-contained-ecc", "relaunch")
    ladder = [("evidence", StepState.PROVED), ("restart", StepState.PROVED), ("relaunch", StepState.PROVED)]
    assert host.steps("xid-94-contained-ecc") == ladder
    assert world.jobs() == Counter({"restart qwen.service": 2}) and world.unrecorded() == []
    # three of the four are healthy, and the profiles are of four and of two
    assert len(host.served.held) == 2 and THIRD not in host.served.held
    assert host.served.complete() == 200
    exclusion = host.cards()[THIRD].exclusion
    assert exclusion is not None and (exclusion.state, exclusion.xid) == ("out", 94)
    [told] = host.told_of("Done and proved: relaunch")
    for words in (
        "qwen holds 0000:17:00.0, 0000:65:00.0 and no other, as the driver tells; canary: qwen answered",
        "serial 1650000000002, part number 692-2G520-0200-000",
        "slot 0000:e5:00.0",
        "History: 3 Xid 63 since 30 Nov 2026, 2 Xid 94 since 27 Dec 2026",
    ):
        assert words in told, told
    host.later(timedelta(hours=2))
    world.kernel.print(CONTAINED)
    [page] = host.told_of("again and again")
    assert "serial 1650000000002" in page and "reboot in the window" in page
    assert world.jobs() == Counter({"restart qwen.service": 2}), "who runs without the card is left alone"
    world.stop()


def under_the_default_mode_nothing_is_asked_of_systemd_and_nothing_written(scene: Scene) -> None:
    host = Host(scene, {124, 134}, targets=OBSERVE)
    world = host.world
    host.begin()
    world.kernel.print(CONTAINED)
    host.until_step("xid-94-contained-ecc", "restart", StepState.WOULD)
    host.later(timedelta(hours=2))
    world.kernel.print(CONTAINED)
    host.until_step("xid-94-contained-ecc", "relaunch", StepState.WOULD)
    assert world.jobs() == Counter() and world.charges() == ()
    assert host.told_of("would have relaunched qwen")
    assert host.visible() is None and host.cards()[THIRD].exclusion is None
    assert host.served.held == ALL
    world.stop()


def an_error_after_a_quiet_day_restarts_again(scene: Scene) -> None:
    host = Host(scene, {134})
    world = host.world
    host.begin()
    world.kernel.print(CONTAINED)
    host.until_step("xid-94-contained-ecc", "restart")
    host.later(timedelta(hours=25))
    world.until(lambda: [one.state for one in world.incidents()] == [IncidentState.RESOLVED], alive=True)
    world.kernel.print(CONTAINED)
    host.until_step("xid-94-contained-ecc", "restart", times=2)
    assert ("relaunch", StepState.PROVED) not in host.steps("xid-94-contained-ecc")
    assert host.served.held == ALL and host.cards()[THIRD].exclusion is None
    world.stop()


def with_one_healthy_card_a_person_is_paged_and_the_unit_left_alone(scene: Scene) -> None:
    host = Host(scene, {132})
    world = host.world
    host.served.cards.change({"gpus.0.rows.failed": True, "gpus.1.recovery": 2})
    host.begin()
    before = world.systemd.units[host.served.unit].invocation
    world.kernel.print(OFF_THE_BUS)
    host.until_step("xid-79-off-the-bus", "relaunch", StepState.FAILED)
    assert host.told_of("switch the power off and on")
    [told] = host.told_of("Failed: relaunch")
    for words in (
        "qwen needs 2 healthy GPUs of the host for its smallest profile and has 1",
        "17:00.0 cannot be used: row remapping failed",
        "65:00.0 cannot be used: the driver asks for reboot",
        "qwen.service was not touched",
    ):
        assert words in told, told
    assert world.jobs() == Counter() and host.visible() is None
    assert world.systemd.units[host.served.unit].invocation == before
    assert host.served.held == ALL and host.served.complete() == 200
    world.stop()


def a_missing_card_shifts_the_numbers_and_the_right_cards_are_chosen(scene: Scene) -> None:
    """What NVML counts in an order of its own, CUDA counts by address, without the card that is missing."""
    host = Host(scene, {412})
    world = host.world
    state = host.served.cards.read()
    host.served.cards.write({**state, "gpus": [state["gpus"][place] for place in (3, 2, 0, 1)]})
    host.begin()
    host.served.cards.set("gpus.2.missing", True)
    host.until_step("gpu-missing", "relaunch")
    # e5 and e9 are of one NUMA node; with the first card gone they are CUDA's second and third
    assert host.visible() == "1,2"
    assert host.served.held == {THIRD, FOURTH}
    world.stop()


STORIES: list[Story] = [
    weeks_of_remapped_rows_then_a_second_contained_error_leaves_the_card_out,
    under_the_default_mode_nothing_is_asked_of_systemd_and_nothing_written,
    an_error_after_a_quiet_day_restarts_again,
    with_one_healthy_card_a_person_is_paged_and_the_unit_left_alone,
    a_missing_card_shifts_the_numbers_and_the_right_cards_are_chosen,
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the driver library once, before the stories are played."""
    return fakenvml.build(tmp_path_factory.getbasetemp() / LIBRARY)


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_dying_gpu(library: Path, together: Callable[[Story], None], story: Story) -> None:
    together(story)
