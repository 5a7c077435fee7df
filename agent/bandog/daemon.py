"""The composition root: builds every part, joins them, and runs the loop.

Nothing else wires. A part that fails to start is reported and the agent goes on without it; only a
host without a boot id cannot be watched, as no record could be trusted there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from .config import Config, Loaded, load
from .domain.budgets import Ledger, Limits
from .domain.changes import IncidentChanged
from .domain.engine import Engine
from .domain.model import Finding, Request
from .host.child import Children
from .host.clock import SystemClock
from .host.hostname import short_hostname
from .host.http import HttpClient
from .host.paths import Paths
from .host.site import Clock
from .host.systemd import SystemdBus
from .host.systemd_types import Systemd
from .housekeeping import Housekeeping
from .pluginloader import LocalHost, discover
from .runtime import gates
from .runtime.addresses import Addresses
from .runtime.admission import BUDGETS_KEY
from .runtime.control import Control
from .runtime.executor import Executor
from .runtime.gpu_desk import GpuDesk
from .runtime.guard import Guard
from .runtime.heartbeat import Heartbeat
from .runtime.holding import LOADING, Holding
from .runtime.hooks import ChangeHooks
from .runtime.journal_desk import JournalDesk
from .runtime.keys import Keys
from .runtime.lastsink import LastSink
from .runtime.logs import Logs
from .runtime.loops import Loops
from .runtime.operations import Operations
from .runtime.pipeline import Outlets, Pipeline
from .runtime.probing import Probing
from .runtime.secrets import MaskingFilter, Secrets, guard_crashes
from .runtime.selfreport import SelfReport
from .runtime.sender import Sender
from .runtime.watchdog import Notifier
from .runtime.workers import Workers
from .services.inventory import Inventory
from .services.locate import Locator
from .services.readiness import ServiceBook
from .services.registry import Registry
from .site import LocalSite
from .sources.bookmark import Bookmark
from .sources.kmsg import KmsgSource
from .sources.kmsg_device import open_kmsg
from .sources.refill import Refill
from .sources.ticker import Ticker
from .store.database import How
from .store.lost import marker_path, state_lost
from .store.rows import AddEvent, Row, SaveCursor, Saved
from .store.store import Store

log = logging.getLogger(__name__)

LOAD_PLUGIN = timedelta(seconds=15)
"""An import from a cold, busy disk takes seconds; the unit has 90 to start."""
OPEN_STORE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `bandog run` was told; None means the host's usual place."""

    root: Path = Path("/")
    etc: Path | None = None
    state: Path | None = None
    run: Path | None = None
    observe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of the host that a simulation replaces; None means the real one."""

    systemd: Systemd | None = None
    clock: Clock | None = None
    open_kmsg: Callable[[Path], int] = open_kmsg
    policies_dir: Path | None = None
    on_change: Callable[[IncidentChanged], None] | None = None


class Daemon:
    """The agent. `start` on a running loop, then `stop`; `main` does both around a signal."""

    def __init__(self, settings: Settings, parts: Parts | None = None) -> None:
        self.settings = settings
        self.parts = parts or Parts()
        self.paths = Paths(root=settings.root, etc_dir=settings.etc, state_dir=settings.state, run_dir=settings.run)
        self.notifier = Notifier(os.environ)
        self.secrets = Secrets()
        self.clock: Clock = self.parts.clock or SystemClock(self.paths)
        self.host = short_hostname(self.paths)
        self.holding = Holding(self.paths.run, self.clock.now())
        self.guard = Guard(holding=self.holding)
        with Guard(LOAD_PLUGIN, self.holding, LOADING).running() as guard:
            self.found = discover(self.paths, guard, barred=self.holding.barred)
        self.catalogue = self.found.catalogue
        self.loaded = self._load()
        self.config = self._usable(self.loaded)
        self.addresses = Addresses(self.paths.etc, os.environ, self.secrets)
        self.report = SelfReport(lambda: self.pipeline.say)
        self.loops = Loops(self.report.part_ended)

    def _load(self) -> Loaded:
        return load(self.paths, plugins=self.catalogue, policies_dir=self.parts.policies_dir)

    def _usable(self, loaded: Loaded) -> Config:
        """Return what is right of the configuration; a broken one never acts."""
        config = loaded.config or loaded.salvaged or Config()
        return replace(config, mode="observe") if self.settings.observe or loaded.config is None else config

    def mode(self) -> str | tuple[str, ...]:
        """Return what the configuration lets act; the breaker is the executor's."""
        return self.config.mode

    # --- building ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Build and join everything, begin to watch, and say READY."""
        self.workers = Workers(on_stuck=self.report.workers_stuck, on_free=self.report.workers_free)
        self.children = Children()
        self.journal = JournalDesk(self.paths, self.clock, self.workers, self.children.run)
        self.store = Store(
            self.paths.state / "bandog.db",
            clock=self.clock,
            marker=marker_path(self.paths),
            on_stuck=self.report.store_stuck,
            on_recovered=self.report.store_recovered,
            on_back=self._store_back,
        )
        opened = await self.store.open(OPEN_STORE)
        boots = await self.journal.boots_last_hour() if opened.how is How.FRESH and not opened.marked else None
        lost = state_lost(opened, boots)
        saved = await self.store.load()
        with Guard(LOAD_PLUGIN, self.holding, LOADING).running() as guard:
            self.plugins = self.found.build(self.config.plugins, LocalHost(paths=self.paths, clock=self.clock), guard)
        self.guard.start()
        self.ledger = Ledger(
            Limits.of(self.config.budgets),
            saved.charges,
            saved.memory.get(BUDGETS_KEY) or {},
            unit_of=lambda name: next((one.unit for one in self.config.services if one.name == name), ""),
        )
        self.engine = Engine(
            self.config.policies,
            {name: spec.traits for name, spec in self.catalogue.actions.items() if name in self.plugins.actions},
            host=self.host,
            incidents=saved.incidents,
            requests=[(one.request, one.state, one.why) for one in saved.requests],
            memory=saved.memory,
        )
        self.holds = gates.Holds(saved.holds)
        self.hooks = ChangeHooks(self.found.manager.hook.incident_changed, self.workers)
        self._build_site(saved)
        self._build_sender()
        self.executor = self._executor()
        self.pipeline = Pipeline(self.engine, self.plugins.detectors, self._outlets(), self.clock.now, self.guard)
        self.kmsg = self._kmsg(saved.cursors)
        self.refill = Refill(
            self.kmsg,
            self.clock,
            lookup=self.journal.missing,
            feed=self.pipeline.feed,
            ended=lambda refilled: self.pipeline.found(refilled.to_finding(self.clock.now())),
        )
        self.house = Housekeeping(self)
        self.sender.start(saved.messages)
        self.executor.resume(saved.requests)
        self.pipeline.tick()  # at once: what the engine no longer wants must not begin
        self._report_start(lost)
        self.kmsg.start(self.pipeline.feed)
        self._begin()
        self.control = Control(self.paths.run / "control", {**self.operations().table(), **self.gpus.table()})
        try:
            await self.control.start()
        except OSError as error:
            log.error("no control socket path=%s why=%s", self.paths.run, error)
        self.notifier.ready(self.house.summary())

    def _build_site(self, saved: Saved) -> None:
        self.http = HttpClient()
        self.systemd: Systemd = self.parts.systemd or SystemdBus.of_host(self.paths)
        self.gpus = GpuDesk(now=self.clock.now, commit=self.commit)
        inventory = Inventory(self.clock, known=saved.gpus, events=saved.gpu_events, changed=self.gpus.changed)
        self.locator = Locator(self.paths, Registry(self.config.services), inventory)
        self.gpus.inventory, self.gpus.locator = inventory, self.locator
        self.site = LocalSite(
            paths=self.paths,
            clock=self.clock,
            systemd=self.systemd,
            children=self.children,
            http=self.http,
            hostname=self.host,
            loop=asyncio.get_running_loop(),
            note=lambda request, facts: self.executor.note(request, facts),
            tell=self._tell_request,
        )
        keys = Keys(self.paths.etc, os.environ, self.secrets)
        self.services = ServiceBook(Registry(self.config.services), self.site, keys)
        self.site.services, self.site.gpus = self.services, inventory

    def _build_sender(self) -> None:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        def spool(row: Row) -> None:
            # On the loop at once, so that no message reaches the disk later than what it tells of.
            if threading.get_ident() == thread:
                self.commit(row)
            else:
                loop.call_soon_threadsafe(self.commit, row)

        self.last_sink = LastSink(self.paths, self.clock, self.secrets, child=self.site.child)
        self.sender = Sender(
            self.targets(),
            host=self.host,
            clock=self.clock,
            secrets=self.secrets,
            last=self.last_sink,
            save=spool,
            policy_of=lambda name: next((one for one in self.config.policies if one.name == name), None),
        )

    def targets(self) -> dict[str, list[str]]:
        """Return the addresses of each notification target, secrets read and known to the mask."""
        return self.addresses.of_targets(self.config.notify)

    def _executor(self) -> Executor:
        veto = self.found.manager.hook.veto
        return Executor(
            site=self.site,
            clock=self.clock,
            store=self.store,
            ledger=self.ledger,
            workers=self.workers,
            actions=self.plugins.actions,
            gates=(
                # First: a request that waits days for its window must not run out of patience at the others.
                gates.WindowGate(lambda: self.config.windows, self.clock),
                gates.HoldGate(self.holds, paths=self.paths, clock=self.clock, workers=self.workers),
                gates.PackageGate(paths=self.paths, workers=self.workers),
                gates.KubeletGate(
                    lambda: self.config.kubernetes, paths=self.paths, clock=self.clock, workers=self.workers
                ),
                gates.BootGate(self.clock),
                gates.VetoGate(veto, self.workers, anyone=lambda: bool(veto.get_hookimpls())),
            ),
            report=lambda report: self.pipeline.apply(report),
            incident_of=lambda number: self.engine.incidents.get(number),
            service_of=lambda name: {one.name: one for one in self.services.registry}.get(name),
            mode=self.mode,
            on_tripped=self.report.tripped,
            guard=self.guard,
        )

    def _outlets(self) -> Outlets:
        return Outlets(
            commit=self.commit,
            tell=self.sender.tell,
            submit=self.executor.submit,
            drop=self.executor.drop,
            announce=self._announce,
            annotate=self._annotate,
            cursor=self.cursor,
            take=lambda identity: self.kmsg.take(identity),
            unplug=self.found.drop,
        )

    def _kmsg(self, cursors: tuple[SaveCursor, ...]) -> KmsgSource:
        boot = self.clock.now().boot_id
        marks = [Bookmark.parse(one.position, boot_id=boot) for one in cursors if one.source == KmsgSource.name]
        return KmsgSource(
            self.paths.kmsg,
            self.clock,
            needles=[needle for one in self.plugins.detectors for needle in one.needles],
            is_open=lambda: self.pipeline.is_open(),
            mark=next((mark for mark in marks if mark is not None), None),
            on_gap=lambda gap: self.refill.add(gap),
            opener=self.parts.open_kmsg,
        )

    def _heartbeat(self) -> Heartbeat | None:
        wanted = self.config.heartbeat
        urls = self.addresses.of(wanted.url, "heartbeat") if wanted is not None else []
        if wanted is None or not urls:
            return None
        return Heartbeat(urls[0], every=wanted.every, http=self.http, clock=self.clock, secrets=self.secrets)

    def _begin(self) -> None:
        """Start what runs by the clock."""
        self.heartbeat = self._heartbeat()
        if self.heartbeat is not None:
            self.heartbeat.start()
        self.ticker = Ticker(self.house.tick)
        self.ticker.start()
        kinds = Counter(kind for probe in self.plugins.probes for kind in probe.emits)
        # Of a kind that two probes look for, neither may say alone that it has cleared.
        left = [one for one in self.engine.raised if kinds[one[0]] == 1]
        self.probings = [
            Probing(
                probe,
                self.site,
                self.clock,
                self.workers.run,
                self.pipeline.found,
                left,
                at_work=self.holding.probe,
            )
            for probe in self.plugins.probes
        ]
        for one in self.probings:
            self.loops.start(one.loop(), one.probe.name)
        self.loops.start(self.house.loop(), "housekeeping")

    def operations(self) -> Operations:
        """Return what the control socket offers."""
        return Operations(
            clock=self.clock,
            pipe=self.pipeline,
            executor=self.executor,
            holds=self.holds,
            registry=lambda: self.services.registry,
            incidents=lambda: self.engine.incidents,
            kinds=lambda: tuple(self.catalogue.kinds),
            commit=self.commit,
            status=self.house.status,
            plugins=self.house.plugin_lines,
            test_targets=self.house.test_targets,
            rearmed=self.report.rearmed,
            reload=self.reload,
        )

    # --- what the parts call -------------------------------------------------------------------

    def commit(self, *rows: Row) -> asyncio.Future[None]:
        """Hand rows to the store."""
        return self.store.commit(*rows)

    def _annotate(self, finding: Finding) -> Finding:
        if finding.raised and finding.live and not finding.drill:
            ended = self.ledger.fault_seen(finding.kind, finding.subject, finding.facts, finding.at)
            if ended:
                self.executor.save_budgets()
        finding = self.gpus.annotate(finding)
        return self.locator.annotate(finding) if not finding.services else finding

    def cursor(self) -> SaveCursor | None:
        """Return how far the kernel's log was read, None before its first record."""
        position = self.kmsg.position()
        if position is None:
            return None
        return SaveCursor(source=self.kmsg.name, boot_id=self.clock.now().boot_id, position=position)

    def _announce(self, change: IncidentChanged) -> None:
        if self.parts.on_change is not None:
            self.parts.on_change(change)
        self.hooks.announce(change)

    def _tell_request(self, request: Request, to: Sequence[str], text: str, urgent: bool) -> None:
        incident = self.engine.incidents.get(request.incident)
        if incident is not None:
            self.sender.tell_request(incident, to=to, text=text, urgent=urgent)

    def _store_back(self) -> None:
        """The database that could not be opened at the start is there: start again with what it holds."""
        log.warning("starting again with the database path=%s", self.store.path)
        os.kill(os.getpid(), signal.SIGTERM)

    def _report_start(self, lost: str | None) -> None:
        self.commit(AddEvent(incident=0, at=self.clock.now(), what="started", why=f"mode {self.mode()}"))
        broken = [one for one in self.plugins.reports if one.state == "broken"]
        self.report.plugins(broken, self.engine.raised)
        if lost:
            self.executor.trip(lost)
            self.report.state_lost(lost)
        self.report.configuration(self.loaded.errors)

    # --- reload and end ------------------------------------------------------------------------

    async def reload(self) -> str:
        """Read the configuration again and swap it in whole, or keep the old one and report."""
        self.notifier.reloading()
        try:
            loaded = await self.workers.run(self._load, deadline=timedelta(seconds=30), name="reload")
            self.report.configuration(loaded.errors)
            if loaded.config is None:
                return f"the old configuration stays: {len(loaded.errors)} problems, first {loaded.errors[0]}"
            self._swap(self._usable(loaded), loaded)
            return f"{len(self.config.policies)} policies and {len(self.config.services)} services in force"
        finally:
            self.notifier.ready(self.house.summary())

    def _swap(self, config: Config, loaded: Loaded) -> None:
        self.config, self.loaded = config, loaded
        registry = Registry(config.services)
        self.services.replace(registry)
        self.locator.registry = registry
        self.ledger.limits = Limits.of(config.budgets)
        self.sender.retarget(self.targets())
        self.house.replace_policies(config)
        self.executor.poke()

    async def stop(self) -> None:
        """Stop watching, let what acts come to its end for a moment, write what waits."""
        self.notifier.stopping()
        self.holding.close()
        self.kmsg.stop()
        self.ticker.stop()
        await self.control.stop()
        await self.loops.stop()
        await self.hooks.stop()
        await self.executor.close()
        cursor = self.cursor()
        if cursor is not None:
            self.commit(cursor)
        self.gpus.save()
        if self.heartbeat is not None:
            self.heartbeat.stop()
        self.sender.stop(timedelta(seconds=1))
        await asyncio.sleep(0)  # what it could not deliver is handed to the store
        await self.store.close(timedelta(seconds=1))
        self.workers.close()
        self.children.close()
        self.guard.stop()


def main(settings: Settings, parts: Parts | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    daemon = Daemon(settings, parts)
    logs = Logs(daemon.config.log_level, [MaskingFilter(daemon.secrets)])
    guard_crashes(daemon.secrets)
    try:
        asyncio.run(_live(daemon))
    finally:
        logs.stop()
    # A thread that hangs on a dead disk must not keep the process: everything that can be saved is.
    os._exit(0)


async def _live(daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: daemon.house.later(daemon.reload()))
    await daemon.start()
    log.info("watching policies=%d services=%d", len(daemon.config.policies), len(daemon.config.services))
    await ended.wait()
    await daemon.stop()
