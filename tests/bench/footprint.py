"""Memory with targets that have delivered, and CPU while nothing happens on a busy host."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack

from figure import Measured
from ground import Ground, helper, said
from kernel import Printk, subjects, xid

# Slack and Telegram are loaded and never called: their addresses are not on loopback.
MAIN = """\
mode: observe
notify:
  oncall: {{urls: "{mail}"}}
  chat: {{urls: "{chat}"}}
  others:
    urls:
      - "slack://TAAAAAAAA/BBBBBBBBB/cccccccccccccccccccccccc/%23gpu"
      - "tgram://123456789:abcdefghijklmnopqrstuvwxyzABCDEFGHI/-1001234567890"
"""
POLICY = """\
policy: bench
match: {kind: nvidia.xid, facts: {xid: [94]}}
notify: [oncall, chat]
steps: [{do: evidence}]
"""
THREADS = 5000


def memory(small: bool) -> Measured:
    """PSS of the daemon and its children, after an incident was told by mail and by chat."""
    with Ground() as ground, helper("receivers", "--tell") as receivers, Printk() as printk:
        ground.configure(MAIN.format(**said(receivers)), bench=POLICY)
        with ground.daemon(printk.reader) as daemon:
            printk.print(xid(next(subjects())))
            assert receivers.stdout is not None
            told: set[str] = set()
            while told < {"mail", "chat"}:
                told.add(receivers.stdout.readline().strip())
            time.sleep(3 if small else 25)
            pss, rss = daemon.memory()
            states = daemon.status()["notify"]
            more = {"RSS": f"{rss:.1f} MiB", "targets": str(len(states))}
            return Measured(value=pss, more=more)


def idle(small: bool) -> Measured:
    """CPU over two minutes: a look at the whole host, which comes every two minutes, is in it."""
    seconds = 20.0 if small else 125.0
    with ExitStack() as stack:
        ground = stack.enter_context(Ground())
        receivers = stack.enter_context(helper("receivers"))
        printk = stack.enter_context(Printk())
        sleepers = stack.enter_context(helper("sleepers", str(THREADS), str(seconds + 90)))
        (ground.group / "cgroup.procs").write_text(f"{said(sleepers)['pid']}\n")
        has_bus = shutil.which("dbus-daemon") is not None
        if has_bus:
            # Started by a user, dbus-daemon grumbles about its limits.
            bus = stack.enter_context(helper("bus", ground.run, quiet=True))
            (ground.root / "run/dbus/system_bus_socket").symlink_to(said(bus)["socket"])
        ground.configure(MAIN.format(**said(receivers)), bench=POLICY)
        daemon = stack.enter_context(ground.daemon(printk.reader))
        time.sleep(12)
        before, began = daemon.cpu(), time.monotonic()
        time.sleep(seconds)
        share = (daemon.cpu() - before) / (time.monotonic() - began) * 100
        more = {"threads": f"{THREADS:,}", "over": f"{seconds:g} s", "D-Bus": "yes" if has_bus else "no"}
        return Measured(value=share, more=more)
