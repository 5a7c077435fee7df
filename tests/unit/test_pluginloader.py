"""Plugins load one at a time; a broken one is taken out whole and named."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from bandog.host.paths import Paths
from bandog.pluginloader import PluginSet, discover
from bandog.runtime.guard import Guard

GOOD = """
import bandog

class Fan(bandog.LogDetector):
    name = "fan"
    emits = {"site.fan": {"rpm": int}}
    needles = (b"fan:",)

    def feed(self, record):
        yield bandog.Finding.of(record, kind="site.fan", subject="host", severity=bandog.Severity.INFO)

@bandog.hookimpl
def register_detectors(register):
    register(Fan)
"""


class Bare:
    """A host without anything."""

    paths = Paths()
    clock = None


def site_plugins(root: Path, **files: str) -> Paths:
    if os.geteuid() != 0:
        pytest.skip("needs root: plugins.d must belong to it")
    folder = root / "plugins.d"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return Paths(etc_dir=root)


def test_a_file_in_plugins_d_is_loaded(tmp_path: Path) -> None:
    found = discover(site_plugins(tmp_path, fan=GOOD))
    assert "fan" in found.detectors
    assert "site.fan" in found.catalogue.kinds
    assert [one.name for one in found.build({}, Bare()).detectors if one.name == "fan"] == ["fan"]  # type: ignore[arg-type]


def test_a_plugin_that_raises_at_import_is_named_and_the_others_load(tmp_path: Path) -> None:
    found = discover(site_plugins(tmp_path, bad="raise RuntimeError('no such card')", fan=GOOD))
    assert [(one.name, one.why) for one in found.broken] == [("bad", "RuntimeError: no such card")]
    assert "fan" in found.detectors


def test_a_plugin_that_calls_exit_does_not_end_the_agent(tmp_path: Path) -> None:
    found = discover(site_plugins(tmp_path, bad="raise SystemExit(3)"))
    assert [one.why for one in found.broken] == ["SystemExit: 3"]


@pytest.mark.parametrize("error", ["GeneratorExit", "type('Odd', (BaseException,), {})"])
def test_a_plugin_may_raise_anything_at_its_import(tmp_path: Path, error: str) -> None:
    found = discover(site_plugins(tmp_path, bad=f"raise {error}", fan=GOOD))
    assert [one.name for one in found.broken] == ["bad"]
    assert "fan" in found.detectors


def test_an_instance_that_blocks_when_it_is_made_is_broken_and_the_others_work(tmp_path: Path) -> None:
    slow = GOOD.replace('"fan"', '"slow"').replace("site.fan", "site.slow")
    slow = slow.replace(
        "    def feed", "    def unsupported(self, host):\n        import time; time.sleep(60)\n\n    def feed"
    )
    with Guard(timedelta(milliseconds=300)).running() as guard:
        made = discover(site_plugins(tmp_path, slow=slow, fan=GOOD)).build({}, Bare(), guard)  # type: ignore[arg-type]
    assert {one.name: one.state for one in made.reports if one.name in ("slow", "fan")} == {
        "slow": "broken",
        "fan": "loaded",
    }


def test_a_plugin_that_fails_after_its_first_class_leaves_nothing_behind(tmp_path: Path) -> None:
    text = GOOD.replace("register(Fan)", "register(Fan); register(object)").replace('"fan"', '"half"')
    found = discover(site_plugins(tmp_path, half=text))
    assert "half" not in found.detectors
    assert "site.fan" not in found.catalogue.kinds
    assert "derived from LogDetector or Probe" in found.broken[0].why


def test_two_plugins_with_one_name_keep_the_first(tmp_path: Path) -> None:
    found = discover(site_plugins(tmp_path, a=GOOD, b=GOOD))
    assert [one.name for one in found.broken] == ["b"]
    assert "already registered" in found.broken[0].why


def test_a_hook_with_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    text = GOOD.replace("def register_detectors", "def register_detector")
    found = discover(site_plugins(tmp_path, fan=text))
    assert "fan" not in found.detectors
    assert "register_detector" in found.broken[0].why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to own the file as root")
def test_a_file_that_others_may_write_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    paths = site_plugins(tmp_path, fan=GOOD)
    file = tmp_path / "plugins.d" / "fan.py"
    file.chmod(0o666)
    found = discover(paths)
    assert "fan" not in found.detectors
    assert f"chmod go-w {file}" in found.broken[0].why


def test_a_plugin_that_blocks_at_import_is_interrupted_and_named(tmp_path: Path) -> None:
    from datetime import timedelta

    guard = Guard(timedelta(milliseconds=100))
    guard.start()
    try:
        found = discover(site_plugins(tmp_path, slow="import time; time.sleep(60)", fan=GOOD), guard)
    finally:
        guard.stop()
    assert [one.name for one in found.broken] == ["slow"]
    assert "held the loop" in found.broken[0].why
    assert "fan" in found.detectors


def test_a_plugin_switched_off_is_reported_as_off(tmp_path: Path) -> None:
    found = discover(site_plugins(tmp_path, fan=GOOD))
    made = found.build({"fan": "off"}, Bare())  # type: ignore[arg-type]
    assert all(one.name != "fan" for one in made.detectors)
    assert [one.state for one in made.reports if one.name == "fan"] == ["off"]


def test_a_plugin_that_cannot_work_here_says_why(tmp_path: Path) -> None:
    text = GOOD.replace("    def feed", "    def unsupported(self, host):\n        return 'no fan'\n\n    def feed")
    found = discover(site_plugins(tmp_path, fan=text))
    made = found.build({}, Bare())  # type: ignore[arg-type]
    assert [(one.state, one.why) for one in made.reports if one.name == "fan"] == [("unsupported", "no fan")]


def test_an_empty_set_has_only_the_kinds_of_the_agent() -> None:
    assert all(kind.startswith("agent.") for kind in PluginSet().catalogue.kinds)
