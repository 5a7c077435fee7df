"""A whole host on a stage: the real daemon, a kernel log to print to, units of real processes, a webhook."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bandog.daemon import Daemon, Parts, Settings
from bandog.domain.changes import IncidentChanged

from .kernel import KernelLog
from .sink import WebhookSink, free_port
from .units import SimulatedSystemd

TOP = Path(__file__).parents[2]
SERVER = Path(__file__).with_name("model_server.py")

MAIN = """\
mode: {mode}
notify: {{oncall: {{urls: "{url}"}}}}
"""
SERVICE = """\
service: qwen
unit: vllm-qwen.service
gpus: ["0000:e5:00.0"]
start: {{order: 1, settle: 1s, timeout: 60s}}
ready: {{http: "http://127.0.0.1:{port}/health"}}
"""
POLICY = """\
policy: test-xid
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 4s
notify: [oncall]
steps:
  - do: restart
    with: {settle: 1s}
  - do: notify
    with: {to: [oncall], urgent: true}
"""


class Stage:
    """One simulated host below `root`; `changes` are all that the engine said."""

    def __init__(self, root: Path, *, mode: str = "enforce", load: float = 0.3, policies: dict[str, str] | None = None):
        self.root = root
        self.kernel = KernelLog()
        self.sink = WebhookSink()
        self.port = free_port()
        self.systemd = SimulatedSystemd({"vllm-qwen.service": [sys.executable, str(SERVER), str(self.port), str(load)]})
        self.changes: list[IncidentChanged] = []
        self.on_change: Callable[[IncidentChanged], None] = lambda change: None
        for folder in ("etc/policies.d", "etc/services.d", "state", "run", "policies"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        # Of the machine below only its processes are seen: not its package manager, nor its console.
        for name in ("proc", "sys"):
            (root / name).symlink_to(f"/{name}")
        (root / "etc/bandog.yaml").write_text(MAIN.format(mode=mode, url=self.sink.url))
        (root / "etc/bandog.yaml").chmod(0o600)
        (root / "etc/services.d/qwen.yaml").write_text(SERVICE.format(port=self.port))
        for name, text in (policies if policies is not None else {"10-test.yaml": POLICY}).items():
            (root / "etc/policies.d" / name).write_text(text)
        self.systemd.boot("vllm-qwen.service")

    @property
    def pid(self) -> int:
        """The process id of the model server now."""
        process = self.systemd.units["vllm-qwen.service"].process
        assert process is not None
        return process.pid

    def daemon(self, *, policies_dir: Path | None = None) -> Daemon:
        """Build a daemon for this host; it is not started."""
        settings = Settings(root=self.root, etc=self.root / "etc", state=self.root / "state", run=self.root / "run")
        parts = Parts(
            systemd=self.systemd,
            open_kmsg=self.kernel.open,
            policies_dir=policies_dir or self.root / "policies",
            on_change=self._changed,
        )
        return Daemon(settings, parts)

    def _changed(self, change: IncidentChanged) -> None:
        self.changes.append(change)
        self.on_change(change)

    @contextlib.asynccontextmanager
    async def running(self, **options: Path) -> AsyncIterator[Daemon]:
        """Run a daemon on this host for the length of the block."""
        daemon = self.daemon(**options)
        await daemon.start()
        try:
            yield daemon
        finally:
            await daemon.stop()

    async def until(self, condition: Callable[[], bool], within: float = 20.0) -> None:
        """Wait for a condition; AssertionError with what happened if it does not come."""
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end:
                story = "\n".join(f"  {one.what} {one.action or ''} {one.why}" for one in self.changes)
                raise AssertionError(f"did not happen within {within:g} s; so far:\n{story}")
            await asyncio.sleep(0.02)

    def said(self, what: str) -> list[IncidentChanged]:
        """Return the changes of one word."""
        return [one for one in self.changes if one.what == what]

    def close(self) -> None:
        """End every process and server."""
        self.systemd.shutdown()
        self.sink.close()
        self.kernel.close()
