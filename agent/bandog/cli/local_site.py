"""The host for commands that work without the daemon: systemd, the services, the cards and a look at them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..host.child import Children
from ..host.clock import SystemClock
from ..host.hostname import short_hostname
from ..host.http import HttpClient
from ..host.paths import Paths
from ..host.resident import Resident
from ..host.site import Clock
from ..host.systemd import SystemdBus
from ..host.systemd_types import Systemd
from ..plugin import Probe
from ..pluginloader import LocalHost, PluginSet
from ..runtime.keys import Keys
from ..runtime.secrets import Secrets
from ..services.inventory import Inventory
from ..services.readiness import ServiceBook
from ..services.registry import Registry
from ..site import LocalSite
from ..store.reader import Reader, StoreUnreadable

log = logging.getLogger(__name__)
PROBE = "gpu"
"""The probe that hands in looks at the GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A living site with what the record tells of the cards. For one command."""

    site: LocalSite
    book: ServiceBook
    probe: Probe | None

    def look(self) -> None:
        """Look at the GPUs now; the inventory has what came of it. Blocks for half a minute at most."""
        if self.probe is None:
            return
        try:
            list(self.probe.poll(self.site))
        # The second door where everything is caught: a probe that cannot tell must not keep a service down.
        except Exception as error:
            log.info("the GPUs cannot be looked at why=%s", error)


class _Site(LocalSite):
    """A site whose programs that stay are ended with the command."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.residents: list[Resident] = []

    def resident(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Resident:
        """Return a program that stays, and remember it."""
        self.residents.append(super().resident(argv, env=env))
        return self.residents[-1]


@asynccontextmanager
async def local_site(
    paths: Paths,
    config: Config,
    plugins: PluginSet,
    *,
    systemd: Systemd | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Local]:
    """Open the host for a command that runs on the loop; `systemd` and `clock` take the place of its own."""
    clock = clock or SystemClock(paths)
    bus = SystemdBus.of_host(paths)
    children = Children()

    async def no_note(*_: object) -> None:
        """There is no request to note anything on."""

    site = _Site(
        paths=paths,
        clock=clock,
        systemd=systemd or bus,
        children=children,
        http=HttpClient(),
        hostname=short_hostname(paths),
        loop=asyncio.get_running_loop(),
        note=no_note,
        tell=lambda *_: None,
    )
    site.gpus = _inventory(paths, clock)
    book = ServiceBook(Registry(config.services), site, Keys(paths.etc, os.environ, Secrets()))
    site.services = book
    built = plugins.build(config.plugins, LocalHost(paths=paths, clock=clock))
    try:
        yield Local(site=site, book=book, probe=next((one for one in built.probes if one.name == PROBE), None))
    finally:
        for one in site.residents:
            await asyncio.to_thread(one.end)
        bus.close()
        children.close()


def _inventory(paths: Paths, clock: Clock) -> Inventory:
    """Return the cards as the record knows them; a record that cannot be read keeps no service down."""
    try:
        with Reader(paths.state / "bandog.db") as reader:
            return Inventory(clock, known=reader.gpus())
    except StoreUnreadable as error:
        log.info("the record of the GPUs cannot be read why=%s", error)
        return Inventory(clock)
