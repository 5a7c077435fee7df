"""What the daemon does by the clock and what it tells of itself: ticks, cursor, tables, metrics, status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from importlib import metadata
from typing import Any, Protocol

from .config import Config, Loaded
from .domain.budgets import Ledger
from .domain.changes import PoliciesReplaced
from .domain.codec import to_json
from .domain.engine import Engine
from .domain.model import Instant, Severity
from .domain.subjects import AGENT
from .host.paths import Paths
from .host.site import Clock
from .host.systemd_types import Systemd, SystemdError
from .pluginloader import Plugins
from .runtime import metrics, report
from .runtime.executor import Executor
from .runtime.gates import Holds
from .runtime.gpu_desk import GpuDesk
from .runtime.heartbeat import Heartbeat
from .runtime.letters import Mail
from .runtime.outlets import AppriseOutlet, OutletError
from .runtime.pipeline import Pipeline
from .runtime.probing import Probing
from .runtime.secrets import Secrets
from .runtime.sender import Sender
from .runtime.watchdog import Notifier
from .runtime.workers import Workers, WorkersBusy, WorkerTimeout
from .services.locate import Locator
from .services.readiness import ServiceBook
from .sources.kmsg import KmsgSource
from .store.rows import Row, SaveCursor
from .store.store import Store

log = logging.getLogger(__name__)

REFRESH = timedelta(seconds=5)
METRICS_EVERY = 3  # refreshes
DEADLINE = timedelta(seconds=10)
TEST_DEADLINE = timedelta(seconds=25)


class Agent(Protocol):
    """The parts of the running agent that housekeeping looks at; `daemon.Daemon` has them."""

    clock: Clock
    config: Config
    loaded: Loaded
    host: str
    engine: Engine
    executor: Executor
    gpus: GpuDesk
    heartbeat: Heartbeat | None
    holds: Holds
    kmsg: KmsgSource
    ledger: Ledger
    locator: Locator
    notifier: Notifier
    paths: Paths
    pipeline: Pipeline
    plugins: Plugins
    probings: list[Probing]
    secrets: Secrets
    sender: Sender
    services: ServiceBook
    store: Store
    systemd: Systemd
    workers: Workers

    def mode(self) -> str | tuple[str, ...]:
        """What the configuration lets act."""

    def commit(self, *rows: Row) -> asyncio.Future[None]:
        """Hand rows to the store."""

    def cursor(self) -> SaveCursor | None:
        """How far the kernel's log was read."""

    def targets(self) -> dict[str, list[str]]:
        """The addresses of each notification target."""


class Housekeeping:
    """Belongs to one daemon and reads its parts; it decides nothing."""

    def __init__(self, daemon: Agent) -> None:
        self._daemon = daemon
        self._started = daemon.clock.now()
        self._lag = timedelta()
        self._position: str | None = None
        self._refused = 0
        self._states: dict[str, str] = {}
        self._later: set[asyncio.Task[Any]] = set()

    # --- by the clock --------------------------------------------------------------------------

    def tick(self, late: timedelta) -> None:
        """Once a second, on the loop: the ping comes from here and from nowhere else."""
        daemon = self._daemon
        self._lag = late
        daemon.notifier.ping()
        daemon.pipeline.tick()
        if daemon.heartbeat is not None and daemon.store.stuck_for() is None:
            daemon.heartbeat.beat()
        for hold in daemon.holds.expired(daemon.clock.now()):
            daemon.holds.drop(hold.target)
            daemon.executor.poke()

    async def loop(self) -> None:
        """Every five seconds: who runs where, how far we have read, what the metrics are."""
        rounds = 0
        while True:
            await self._in_worker(self._daemon.locator.refresh, "locate")
            self._save_position()
            self._save_gpus()
            self._tell_refused()
            await self._ask_units()
            if rounds % METRICS_EVERY == 0 and self._daemon.config.metrics_textfile is not None:
                path, status = self._daemon.config.metrics_textfile, self.status()
                await self._in_worker(lambda p=path, s=status: metrics.write(p, s), "metrics")
            rounds += 1
            await self._daemon.clock.sleep(REFRESH)

    async def _in_worker(self, call: Any, name: str) -> None:
        try:
            await self._daemon.workers.run(call, deadline=DEADLINE, name=name)
        except (WorkerTimeout, WorkersBusy, OSError, ValueError) as error:
            log.warning("housekeeping failed part=%s why=%s", name, error)

    def _tell_refused(self) -> None:
        """A fault that opened no incident is one that nobody hears of: say that there are such."""
        refused = self._daemon.engine.refused
        if refused > self._refused:
            self._refused = refused
            why = f"too many incidents are open: {refused} findings have opened none"
            self._daemon.pipeline.say("agent.log-blind", AGENT, Severity.ERROR, source="incidents", why=why)

    def _save_position(self) -> None:
        cursor = self._daemon.cursor()
        if cursor is not None and cursor.position != self._position and self._daemon.store.stuck_for() is None:
            self._position = cursor.position
            self._daemon.commit(cursor)

    def _save_gpus(self) -> None:
        """What only counts more waits for this; what matters was written when it came."""
        self._daemon.gpus.inventory.settle()
        if self._daemon.store.stuck_for() is None:
            self._daemon.gpus.save()

    async def _ask_units(self) -> None:
        states = {}
        for service in self._daemon.services.registry:
            try:
                unit = await self._daemon.systemd.unit(service.unit)
                states[service.name] = f"{unit.active_state} ({unit.sub_state})"
                if unit.load_state == "not-found":
                    states[service.name] = "unit not found"
                elif unit.active_state == "active":
                    self._daemon.ledger.healthy(service.name, self._daemon.clock.now())
            except SystemdError as error:
                states[service.name] = f"unknown: {error}"
        self._states = states

    def later(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def replace_policies(self, config: Config) -> None:
        """Hand the policies of a reload to the engine."""
        self._daemon.pipeline.apply(PoliciesReplaced(policies=config.policies))

    # --- telling of itself ---------------------------------------------------------------------

    def summary(self) -> str:
        """One line for `systemctl status`."""
        daemon = self._daemon
        alive = sum(not one.state.ended for one in daemon.engine.incidents.values())
        mode = daemon.mode()
        words = mode if isinstance(mode, str) else ", ".join(mode)
        return (
            f"mode {words}; {len(daemon.config.policies)} policies, {len(daemon.config.services)} services, "
            f"{alive} open incidents"
        )

    def status(self) -> dict[str, Any]:
        """The whole state, as `bandog status --json` prints it."""
        daemon = self._daemon
        now = daemon.clock.now()
        alive = report.open_incidents(daemon.engine.incidents.values())
        stuck = daemon.store.stuck_for()
        breaker = daemon.ledger.breaker.why if daemon.ledger.breaker else ""
        return {
            "running": True,
            "version": metadata.version("bandog"),
            "host": daemon.host,
            "boot_id": now.boot_id,
            "mode": to_json(daemon.mode()),
            "breaker": breaker,
            "uptime": now.since(self._started).total_seconds(),
            "lag": self._lag.total_seconds(),
            "store": {
                "path": str(daemon.store.path),
                "available": daemon.store.available,
                "stuck": stuck.total_seconds() if stuck is not None and stuck > REFRESH else 0.0,
            },
            "would": daemon.executor.would,
            "sources": self._sources(now),
            "plugins": self.plugin_lines(),
            "gpus": daemon.gpus.lines(),
            "services": report.service_lines(daemon.services.registry, self._states, daemon.paths.run),
            "incidents": alive,
            "incidents_open": len(alive),
            "waiting": [
                {"request": one.request.id, "action": one.request.action, "state": one.state.value, "why": one.why}
                for one in daemon.executor.under_way()
            ],
            "budgets": [
                {"key": one.key, "used": one.used, "limit": one.limit, "per": to_json(one.per)}
                for one in daemon.ledger.usage(now)
            ],
            "holds": report.hold_lines(daemon.holds.active(now)),
            "notify": [to_json(one) for one in daemon.sender.states()],
            "problems": [str(one) for one in daemon.loaded.problems],
        }

    def _sources(self, now: Instant) -> list[dict[str, Any]]:
        daemon = self._daemon
        state = daemon.kmsg.state
        counts = {
            "read": state.read,
            "wanted": state.wanted,
            "user": state.user_dropped,
            "malformed": state.malformed,
            "lost": state.lost,
            "reopened": state.reopened,
        }
        word = "not watched" if state.problem else "watched"
        lines = [report.source_line("kmsg", word, state.problem or "", counts, state.caught_up)]
        for one in daemon.probings:
            word = "not watched" if one.misses else "watched"
            lines.append(report.source_line(one.probe.name, word, one.why, {"misses": one.misses}, one.last_answer))
        lines += [
            report.source_line(one.name, "not watched", one.why)
            for one in daemon.plugins.reports
            if one.state == "unsupported" and one.provides != (one.name,)  # an action is no source
        ]
        return lines

    def plugin_lines(self) -> list[dict[str, Any]]:
        """Every plugin and what became of it."""
        working = {one.name for one in self._daemon.pipeline.detectors}
        lines = []
        for one in self._daemon.plugins.reports:
            line = to_json(one)
            is_detector = any(one.name == detector.name for detector in self._daemon.plugins.detectors)
            if is_detector and one.name not in working:
                line |= {"state": "broken", "why": "taken out after it failed at work; see incidents"}
            lines.append(line)
        return lines

    async def test_targets(self, targets: Sequence[str], by: str) -> list[tuple[str, bool, str]]:
        """Send a test message to each target and wait for what becomes of it."""
        addresses = self._daemon.targets()
        names = list(targets) or list(addresses)
        told = []
        for name in names:
            urls = addresses.get(name)
            if not urls:
                why = "has no address that can be read; see the log" if urls is not None else "is not configured"
                told.append((name, False, why))
                continue
            for url in urls:
                error = await self._try(url, by)
                told.append((name, error is None, error or ""))
        return told

    async def _try(self, url: str, by: str) -> str | None:
        daemon = self._daemon
        mail = Mail(
            title=f"[{daemon.host}] bandog test",
            body=f"A test message of bandog, asked for by {by}. Nothing is wrong.",
            tone="info",
        )
        try:
            return await daemon.workers.run(
                lambda: AppriseOutlet(url, daemon.secrets).send(mail), deadline=TEST_DEADLINE, name="notify-test"
            )
        except (WorkerTimeout, WorkersBusy, OutletError) as error:
            return daemon.secrets.mask(str(error))
