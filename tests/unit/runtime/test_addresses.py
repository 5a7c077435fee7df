"""Addresses come from where the configuration says; what cannot be read is left out and nothing else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandog.config.settings import NotifyTarget
from bandog.runtime.addresses import Addresses
from bandog.runtime.secrets import Secrets


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def addresses(tmp_path: Path, secrets: Secrets) -> Addresses:
    place = tmp_path / "credentials"
    place.mkdir()
    for name, text in (("oncall", "json://user:hunter2@host/\n# old\n\njson://other/\n"), ("empty", "# none yet\n")):
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    return Addresses(tmp_path, {}, secrets)


def test_a_credential_may_hold_several_addresses(addresses: Addresses) -> None:
    target = NotifyTarget(name="oncall", urls=("credential:oncall", "json://third/"))
    assert addresses.of_targets({"oncall": target}) == {
        "oncall": ["json://user:hunter2@host/", "json://other/", "json://third/"]
    }


def test_what_was_read_is_masked(addresses: Addresses, secrets: Secrets) -> None:
    addresses.of("credential:oncall", "oncall")
    assert "hunter2" not in secrets.mask("could not reach json://user:hunter2@host/")


@pytest.mark.parametrize("url", ["credential:absent", "credential:empty"])
def test_a_target_without_an_address_leaves_the_others_theirs(addresses: Addresses, url: str) -> None:
    targets = {"one": NotifyTarget(name="one", urls=(url,)), "two": NotifyTarget(name="two", urls=("json://h/",))}
    assert addresses.of_targets(targets) == {"one": [], "two": ["json://h/"]}
