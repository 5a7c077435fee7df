"""Looks at the host and says what would keep bandog from seeing or acting, with the exact fix.

Every check reads only what cannot block. A check that cannot tell says so; "not watched" is never "healthy".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .paths import Paths

OK, WARN, BAD, UNKNOWN = "ok", "warn", "bad", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `bandog doctor`: `state` is ok, warn, bad or unknown; `fix` a command or a line to write."""

    topic: str
    name: str
    state: str
    what: str
    fix: str = ""


def _read(paths: Paths, path: str) -> str | None:
    try:
        return paths.at(path).read_text("utf-8", "replace").strip()
    except OSError:
        return None


def sources(paths: Paths) -> Iterator[Check]:
    """Which sources of kernel lines and memory errors this host has."""
    yield _kmsg(paths)
    yield _ring(paths)
    topic = "sources"
    edac = list(paths.at("/sys/devices/system/edac/mc").glob("mc[0-9]*"))
    if edac:
        yield Check(topic=topic, name="edac", state=OK, what=f"{len(edac)} memory controllers count errors")
    else:
        yield Check(
            topic=topic,
            name="edac",
            state=WARN,
            what="no EDAC driver is bound: correctable memory errors are not counted by the kernel here "
            "(a virtual machine, or firmware that keeps them to itself)",
            fix="modprobe i10nm_edac || modprobe amd64_edac; else read the BMC's event log",
        )
    if paths.at("/sys/module/nvidia").is_dir():
        version = _read(paths, "/sys/module/nvidia/version") or "unknown"
        yield Check(topic=topic, name="nvidia", state=OK, what=f"NVIDIA driver {version} is loaded")
    else:
        yield Check(
            topic=topic,
            name="nvidia",
            state=WARN,
            what="the nvidia module is not loaded: no Xid can come from this host now",
            fix="modprobe nvidia",
        )


def _kmsg(paths: Paths) -> Check:
    try:
        os.close(os.open(paths.kmsg, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        return Check(
            topic="sources",
            name="kmsg",
            state=UNKNOWN,
            what=f"{paths.kmsg} cannot be read by this user",
            fix="sudo bandog doctor",
        )
    except OSError as error:
        return Check(
            topic="sources",
            name="kmsg",
            state=BAD,
            what=f"{paths.kmsg}: {error.strerror}: kernel lines are not watched",
            fix="in a container: run bandog on the host instead",
        )
    return Check(topic="sources", name="kmsg", state=OK, what=f"{paths.kmsg} can be read")


def _ring(paths: Paths) -> Check:
    line = _read(paths, "/proc/cmdline") or ""
    match = re.search(r"\blog_buf_len=(\d+)([KMG]?)", line)
    size = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]] if match else 0
    if size >= 4 << 20:
        return Check(topic="sources", name="ring", state=OK, what=f"the kernel's log buffer is {size >> 20} MiB")
    return Check(
        topic="sources",
        name="ring",
        state=WARN,
        what="the kernel's log buffer has its default size; a flood of 100,000 lines a second overruns it",
        fix="add log_buf_len=16M to the kernel command line (GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub)",
    )


def systemd(paths: Paths) -> Iterator[Check]:
    """How systemd guards us, and who guards systemd."""
    topic = "systemd"
    if not paths.at("/run/systemd/system").is_dir():
        yield Check(
            topic=topic,
            name="pid1",
            state=BAD,
            what="systemd is not PID 1 here: units cannot be restarted",
            fix="run bandog on the host itself, not in a container: apt install ./bandog_*.deb there",
        )
        return
    yield Check(topic=topic, name="pid1", state=OK, what="systemd is PID 1")
    devices = sorted(one.name for one in paths.dev.glob("watchdog*"))
    if not devices:
        yield Check(
            topic=topic,
            name="hardware-watchdog",
            state=WARN,
            what="no /dev/watchdog: a kernel that hangs stays hung",
            fix="modprobe iTCO_wdt || modprobe sp5100_tco || modprobe ipmi_watchdog",
        )
        return
    conf = "".join(
        part.read_text("utf-8", "replace")
        for part in [
            paths.at("/etc/systemd/system.conf"),
            *sorted(paths.at("/etc/systemd/system.conf.d").glob("*.conf")),
        ]
        if part.is_file()
    )
    armed = re.search(r"^\s*RuntimeWatchdogSec\s*=\s*(?!0|off)\S+", conf, re.M)
    yield Check(
        topic=topic,
        name="hardware-watchdog",
        state=OK if armed else WARN,
        what=f"{', '.join(devices)} " + ("guards systemd" if armed else "is there, but nobody arms it"),
        fix="" if armed else "set RuntimeWatchdogSec=60s in /etc/systemd/system.conf, then systemctl daemon-reexec",
    )


def journal(paths: Paths) -> Iterator[Check]:
    """Whether the log of a crashed boot is there afterwards."""
    persistent = paths.at("/var/log/journal")
    if persistent.is_dir() and any(persistent.iterdir()):
        yield Check(topic="journal", name="persistence", state=OK, what="the journal survives reboots")
    else:
        yield Check(
            topic="journal",
            name="persistence",
            state=BAD,
            what="the journal is lost at each reboot: nothing will tell what killed the host",
            fix="mkdir -p /var/log/journal && systemd-tmpfiles --create --prefix /var/log/journal && "
            "journalctl --flush",
        )


def hung_task(paths: Paths) -> Iterator[Check]:
    """Whether the kernel reports tasks that hang in D state (kernel.org, sysctl/kernel.rst, hung_task_*)."""
    topic = "hung-task"
    timeout = _read(paths, "/proc/sys/kernel/hung_task_timeout_secs")
    if timeout is None:
        yield Check(
            topic=topic,
            name="timeout",
            state=WARN,
            what="this kernel has no hung-task detection; bandog's own scan of /proc still finds such tasks",
        )
        return
    if timeout == "0":
        yield Check(
            topic=topic,
            name="timeout",
            state=WARN,
            what="hung-task detection is switched off",
            fix="sysctl -w kernel.hung_task_timeout_secs=120",
        )
    else:
        yield Check(topic=topic, name="timeout", state=OK, what=f"tasks in D state are reported after {timeout} s")
    left = _read(paths, "/proc/sys/kernel/hung_task_warnings")
    state, what, fix = OK, f"{left} reports are left before the kernel falls silent", ""
    if left == "-1":
        what = "the number of reports is not limited"
    elif left == "0":
        state, what = BAD, "the kernel has used up its reports and is silent now"
    elif left is None:
        state, what = UNKNOWN, "kernel.hung_task_warnings cannot be read"
    if state is BAD or (left or "").isdigit():
        state = BAD if left == "0" else WARN
        fix = "echo kernel.hung_task_warnings=-1 > /etc/sysctl.d/60-hung-task.conf && sysctl --system"
    yield Check(topic=topic, name="warnings", state=state, what=what, fix=fix)


def containers(paths: Paths) -> Iterator[Check]:
    """Whether a `systemctl daemon-reload` could take the GPUs from running containers."""
    topic = "containers"
    scopes = [
        scope.name
        for pattern in ("docker-*.scope", "cri-containerd-*.scope", "libpod-*.scope")
        for scope in paths.at("/sys/fs/cgroup").glob(f"**/{pattern}")
    ]
    nodes = list(paths.dev.glob("nvidia*"))
    if not scopes or not nodes:
        yield Check(topic=topic, name="reload", state=OK, what="no running GPU container that a reload could hurt")
        return
    missing = [node.name for node in nodes if node.is_char_device() and not _char_link(paths, node.stat().st_rdev)]
    if missing:
        yield Check(
            topic=topic,
            name="reload",
            state=WARN,
            what=f"{len(scopes)} containers run and {', '.join(missing)} lack a /dev/char link: a daemon-reload, "
            "also one by a package upgrade, may cut their GPUs off",
            fix="nvidia-ctk system create-dev-char-symlinks --create-all, at each boot after the modules are loaded",
        )
    else:
        yield Check(topic=topic, name="reload", state=OK, what="every GPU node has its /dev/char link")


def _char_link(paths: Paths, device: int) -> bool:
    return (paths.dev / "char" / f"{os.major(device)}:{os.minor(device)}").exists()


TOPICS: dict[str, Callable[[Paths], Iterator[Check]]] = {
    "sources": sources,
    "systemd": systemd,
    "journal": journal,
    "hung-task": hung_task,
    "containers": containers,
}
