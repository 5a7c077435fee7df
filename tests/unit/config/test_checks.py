"""Judging names that are declared elsewhere, where no single file can show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from bandog import Options
from bandog.config import Loaded, PluginCatalogue
from bandog.config.catalogue import ActionSpec

Write = Callable[..., Loaded]
POLICY = "policy: p\nmatch: {kind: nvidia.xid}\nsteps:\n  - do: reboot\n    with: {when: window}\n"


class RebootWith(Options):
    """As a reboot's arguments will look."""

    when: str = "now"


@pytest.fixture
def with_reboot(catalogue: PluginCatalogue) -> PluginCatalogue:
    return dataclasses.replace(catalogue, actions={**catalogue.actions, "reboot": ActionSpec(with_model=RebootWith)})


def test_waiting_for_a_window_without_one_is_a_warning(configuration: Write, with_reboot: PluginCatalogue) -> None:
    loaded = configuration(plugins=with_reboot, files={"policies.d/1.yaml": POLICY})
    assert [str(one) for one in loaded.problems] == [
        "policies.d/1.yaml:5:18: warning: steps[0].with.when: waits for a window, and none is set; "
        "it will ask a person instead"
    ]


def test_with_a_window_it_is_none(configuration: Write, with_reboot: PluginCatalogue) -> None:
    main = 'windows: {default: {days: [sat], from: "02:00", to: "05:00", tz: UTC}}\n'
    loaded = configuration(plugins=with_reboot, files={"bandog.yaml": main, "policies.d/1.yaml": POLICY})
    assert loaded.problems == ()


def test_a_plugin_that_does_not_load_turns_unknown_names_into_warnings(
    configuration: Write, catalogue: PluginCatalogue
) -> None:
    files = {
        "bandog.yaml": "mode: [restart]\nbudgets: {restart: 1 per 1h}\nplugins: {xid: {a: 1}, other: {b: 2}}\n",
        "policies.d/1.yaml": "policy: p\nmatch: {kind: nvidia.xid, facts: {xid: 1}}\nsteps: [{do: restart}]\n",
        "policies.d/2.yaml": "policy: q\nmatch: {kind: agent.*, facts: {x: 1}}\nsteps: [{do: notify, with: {a: $y}}]\n",
    }
    none = PluginCatalogue(broken=("xid",))
    loaded = configuration(plugins=none, files=files)
    assert {one.code for one in loaded.problems} == {
        "unknown-kind", "unknown-action", "unknown-budget", "unknown-plugin", "unknown-fact", "unknown-name",
    }  # fmt: skip
    assert loaded.config is not None and len(loaded.config.policies) == 2
    assert configuration(plugins=PluginCatalogue(), files=files).config is None


def test_text_with_a_name_in_it_is_not_judged_by_its_type(configuration: Write, catalogue: PluginCatalogue) -> None:
    text = "policy: p\nmatch: {kind: nvidia.xid}\nsteps: [{do: restart, with: {settle: $seconds}}]\n"
    assert configuration(files={"policies.d/1.yaml": text}).problems == ()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("$subject $kind $host $service $unit $incident $xid", []),
        ("$$xid costs 5$$", []),
        ("${xid}th", []),
        ("$nope and $nada", ["unknown-name", "unknown-name"]),
        ("${nope}", ["unknown-name"]),
        ("$ {xid}", ["lone-dollar"]),
        ("$5", ["lone-dollar"]),
        ("$$$", ["lone-dollar"]),
    ],
)
def test_names_in_text_are_built_in_or_facts_of_the_kind(configuration: Write, text: str, codes: list[str]) -> None:
    policy = f"policy: p\nmatch: {{kind: nvidia.xid}}\nsteps: [{{do: notify, with: {{text: '{text}'}}}}]\n"
    assert [one.code for one in configuration(files={"policies.d/1.yaml": policy}).problems] == codes


def test_a_policy_on_several_kinds_may_use_the_facts_of_each(configuration: Write) -> None:
    policy = (
        "policy: p\nmatch: {kind: [nvidia.xid, task.hung], facts: {xid: 13}}\n"
        "steps: [{do: notify, with: {text: '$comm $xid'}}]\n"
    )
    assert configuration(files={"policies.d/1.yaml": policy}).problems == ()


def test_a_plugin_may_be_off_by_the_name_of_the_whole(configuration: Write, catalogue: PluginCatalogue) -> None:
    plugins = dataclasses.replace(catalogue, plugins=("bundle",))
    loaded = configuration(plugins=plugins, files={"bandog.yaml": "plugins: {bundle: off}\n"})
    assert loaded.problems == () and loaded.config is not None
    assert loaded.config.plugins == {"bundle": "off"}


def test_the_same_mistake_in_shipped_policies_about_an_unset_target_is_said_once(configuration: Write) -> None:
    shipped = {f"{n}.yaml": f"policy: p{n}\nmatch: {{kind: agent.*}}\nnotify: [oncall]\n" for n in range(3)}
    loaded = configuration(shipped)
    assert [one.code for one in loaded.problems] == ["nobody-told"]
    assert loaded.config is not None
