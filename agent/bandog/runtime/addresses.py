"""Addresses that are secrets themselves: read where the configuration says, and masked from then on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ..config.credentials import SecretError, read_secret
from ..config.settings import NotifyTarget
from .secrets import Secrets

log = logging.getLogger(__name__)


class Addresses:
    """Reads them anew each time, as credentials are rotated; one that cannot be read is logged and left out."""

    def __init__(self, etc: Path, environ: Mapping[str, str], secrets: Secrets) -> None:
        self._etc = etc
        self._environ = environ
        self._secrets = secrets

    def of_targets(self, targets: Mapping[str, NotifyTarget]) -> dict[str, list[str]]:
        """Return the addresses of each notification target."""
        return {name: [one for url in target.urls for one in self.of(url, name)] for name, target in targets.items()}

    def of(self, url: str, whose: str) -> list[str]:
        """Return the addresses that a configured URL stands for; `whose` names it in the log."""
        try:
            addresses = read_secret(url, self._etc, self._environ)
        except SecretError as error:
            log.error("no address can be read of=%s why=%s", whose, error)
            return []
        for one in addresses:
            self._secrets.add_url(one)
        return addresses
