"""API keys for canaries: read from credentials when they are asked for, and masked from then on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..config.credentials import SecretError, read_secret
from ..services.canary import NoKey
from .secrets import Secrets


class Keys:
    """Returns the key that a credential holds; any thread may call it. Read anew each time: keys are rotated."""

    def __init__(self, etc: Path, environ: Mapping[str, str], secrets: Secrets) -> None:
        self._etc = etc
        self._environ = environ
        self._secrets = secrets

    def __call__(self, name: str) -> str:
        """Return the credential's first line. Raises NoKey with the reason."""
        try:
            lines = read_secret(f"credential:{name}", self._etc, self._environ)
        except SecretError as error:
            raise NoKey(str(error)) from error
        if not lines:
            raise NoKey("it is empty; write the key into it")
        self._secrets.add(lines[0])
        return lines[0]
