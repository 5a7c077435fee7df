"""Where secrets come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bandog.config.credentials import SecretError, credential_exists, read_secret


def secret(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_credential_comes_from_systemd_first(tmp_path: Path) -> None:
    secret(tmp_path / "run/oncall", "json://given\n")
    secret(tmp_path / "etc/credentials/oncall", "json://file\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path / "run")}
    assert read_secret("credential:oncall", tmp_path / "etc", environ) == ["json://given"]
    assert read_secret("credential:oncall", tmp_path / "etc", {}) == ["json://file"]


def test_a_secret_holds_one_url_a_line(tmp_path: Path) -> None:
    file = secret(tmp_path / "urls", "# mail first\n mailtos://u:p@h \n\njson://h\n")
    assert read_secret(f"file:{file}", tmp_path, {}) == ["mailtos://u:p@h", "json://h"]


def test_a_literal_url_stands_for_itself(tmp_path: Path) -> None:
    assert read_secret("json://h/x", tmp_path, {}) == ["json://h/x"]


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = secret(tmp_path / "urls", "json://hunter2\n", 0o644)
    with pytest.raises(SecretError, match="chmod 600") as error:
        read_secret(f"file:{file}", tmp_path, {})
    assert "hunter2" not in str(error.value)


def test_a_credential_that_is_missing_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="credentials/oncall cannot be read"):
        read_secret("credential:oncall", tmp_path, {})


@pytest.mark.parametrize(
    "place", ["etc/bandog/credentials/oncall", "etc/credstore/oncall", "etc/credstore.encrypted/bandog.oncall"]
)
def test_a_credential_that_systemd_will_bring_is_there(tmp_path: Path, place: str) -> None:
    etc = tmp_path / "etc/bandog"
    assert not credential_exists("oncall", etc, {})
    secret(tmp_path / place, "x")
    assert credential_exists("oncall", etc, {})


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """The loop reads secrets at a reload: a FIFO without a writer would stop it for ever."""
    place = tmp_path / "urls"
    if kind == "fifo":
        os.mkfifo(place, 0o600)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    with pytest.raises(SecretError, match="urls"):
        read_secret(f"file:{place}", tmp_path, {})
