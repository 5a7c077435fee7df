"""API keys: the first line of a credential, masked from the moment on that it was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandog.runtime.keys import Keys
from bandog.runtime.secrets import Secrets
from bandog.services.canary import NoKey

KEY = "tok-4711-abcdef"


def write(etc: Path, text: str, mode: int = 0o600) -> None:
    folder = etc / "credentials"
    folder.mkdir()
    (folder / "qwen-key").write_text(text)
    (folder / "qwen-key").chmod(mode)


def test_a_key_is_masked_once_it_was_read(tmp_path: Path) -> None:
    write(tmp_path, f"# for the canary\n{KEY}\n")
    secrets = Secrets()
    assert Keys(tmp_path, {}, secrets)("qwen-key") == KEY
    assert KEY not in secrets.mask(f"the server said {KEY}")


def test_a_credential_of_systemd_comes_first(tmp_path: Path) -> None:
    write(tmp_path, "other")
    (tmp_path / "qwen-key").write_text(KEY)
    (tmp_path / "qwen-key").chmod(0o600)
    assert Keys(tmp_path, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, Secrets())("qwen-key") == KEY


@pytest.mark.parametrize(("text", "mode", "why"), [("", 0o600, "empty"), (KEY, 0o644, "chmod 600")])
def test_a_key_that_cannot_be_used_says_why(tmp_path: Path, text: str, mode: int, why: str) -> None:
    write(tmp_path, text, mode)
    with pytest.raises(NoKey, match=why) as told:
        Keys(tmp_path, {}, Secrets())("qwen-key")
    assert KEY not in str(told.value)


def test_a_missing_credential_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(NoKey, match="credentials/qwen-key cannot be read"):
        Keys(tmp_path, {}, Secrets())("qwen-key")
