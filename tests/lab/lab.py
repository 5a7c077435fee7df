"""What scenarios work with: a machine, the .deb, places where messages arrive, and a clean slate."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..simhost.sink import WebhookSink
from .images import LAB
from .machine import HOST_SEEN_FROM_GUEST, LabError, Machine, wait_until
from .mail import MailSink

UNIT = "lab-model.service"
PORT = 8000
# More than the kernel's buffer holds (128 KiB), so that an agent without a cursor finds no old fault.
FILLER = "lab: what the kernel says when nothing is wrong, and that at some length, " * 3
FILL = 900
CLEAN = """systemctl stop bandog 'lab-*'
umount -l /var/lib/bandog 2>/dev/null
cd /etc/bandog && rm -rf conf.d/* policies.d/* services.d/* plugins.d/* .has-state hold
rm -rf /var/lib/bandog/* /var/lib/bandog/.[!.]*
systemctl reset-failed
true
"""
UNIT_TEXT = """[Unit]
Description=model server of the lab
[Service]
ExecStart=/usr/bin/python3 /opt/lab/model_server.py {port}
TimeoutStopSec=20
"""
SERVICE_TEXT = """service: {name}
unit: {unit}
{gpus}
start: {{settle: 1s, timeout: 1m}}
ready: {{http: "http://127.0.0.1:{port}/health"}}
"""


class Lab:
    """One machine with the sinks that it can reach. Scenarios leave it as `reset` can clean it."""

    def __init__(self, machine: Machine, deb: Path) -> None:
        self.machine = machine
        self.deb = deb
        self.mail = MailSink()
        self.hook = WebhookSink()
        self._boots = 1

    def close(self) -> None:
        """Stop the sinks and the machine."""
        self.mail.close()
        self.hook.close()
        self.machine.close()

    # --- the agent -----------------------------------------------------------------------------

    def main_file(self, *, mode: str, more: str = "") -> str:
        """Return a main file that tells both sinks."""
        host = HOST_SEEN_FROM_GUEST
        mail = f"mailto://{host}:{self.mail.port}?from=bandog@lab.test&to=oncall@lab.test&mode=insecure"
        hook = f"json://{host}:{self.hook.port}/"
        return f'mode: {mode}\nnotify: {{oncall: {{urls: ["{mail}", "{hook}"]}}}}\n{more}'

    def reset(
        self,
        *,
        mode: str = "observe",
        more: str = "",
        policies: dict[str, str] | None = None,
        services: Iterable[str] = ("model",),
        gpus: str = "gpus: all",
        plugins: dict[str, str | Path] | None = None,
        start: bool = True,
    ) -> None:
        """Begin anew: no state, this configuration, running model servers, empty sinks, a started agent."""
        vm = self.machine
        vm.ssh(CLEAN)
        self._forget_boots()
        vm.put(self.main_file(mode=mode, more=more), "/etc/bandog/conf.d/lab.yaml", mode="600")
        vm.put(LAB / "guest" / "model_server.py", "/opt/lab/model_server.py")
        names = list(services)
        for number, name in enumerate(names):
            port = PORT + number
            text = SERVICE_TEXT.format(name=name, unit=f"lab-{name}.service", port=port, gpus=gpus)
            vm.put(text, f"/etc/bandog/services.d/{name}.yaml")
        for name, policy in (policies or {}).items():
            vm.put(policy, f"/etc/bandog/policies.d/{name}.yaml")
        for name, plugin in (plugins or {}).items():
            vm.put(plugin, f"/etc/bandog/plugins.d/{name}.py")
        self.put_units(names)
        vm.ssh(f"yes '{FILLER}' | head -n {FILL} > /proc/bandog-lab")
        for number, name in enumerate(names):
            vm.ssh(f"systemctl start lab-{name}")
            self.await_serving(PORT + number)
        self.forget_messages()
        # a power cut must not take what a person had configured long before; what bandog writes is its own affair
        vm.ssh("sync")
        if start:
            vm.ssh("systemctl start bandog")

    def _forget_boots(self) -> None:
        """Let the journal forget earlier boots.

        No database and three boots within the hour, as scenarios that cut the power leave behind, are to the agent
        a boot loop that ate its state: it would only observe. It counts boots in the journal.
        """
        if self.machine.boots != self._boots:
            self.machine.ssh("journalctl -q --rotate; sleep 2; journalctl -q --vacuum-time=1s")
            self._boots = self.machine.boots

    def put_units(self, names: Iterable[str]) -> None:
        """Write the units of model servers, which a boot forgets, and let systemd load them."""
        for number, name in enumerate(names):
            self.machine.put(UNIT_TEXT.format(port=PORT + number), f"/run/systemd/system/lab-{name}.service")
        self.machine.ssh("systemctl daemon-reload")

    def forget_messages(self) -> None:
        """Empty both sinks."""
        self.mail.messages.clear()
        self.hook.messages.clear()

    def bandog(self, *words: str) -> str:
        """Run the command line in the machine and return its output, whatever its exit code."""
        return self.machine.ssh(f"bandog {' '.join(words)}", check=False)

    def status(self) -> dict[str, Any]:
        """Return what `bandog status --json` tells."""
        told: dict[str, Any] = json.loads(self.bandog("status", "--json"))
        return told

    def incidents(self) -> list[dict[str, Any]]:
        """Return the incidents, open and closed, the newest first, as `bandog incidents --json` tells them."""
        return [json.loads(line) for line in self.bandog("incidents", "--json").splitlines()]

    def show(self, incident: int) -> dict[str, Any]:
        """Return one incident in full."""
        shown: dict[str, Any] = json.loads(self.bandog("show", str(incident), "--json"))
        return shown

    def await_incident(self, policy: str, seconds: float = 60) -> dict[str, Any]:
        """Return the newest incident of `policy`, awaited."""

        def newest() -> dict[str, Any] | None:
            found = [one for one in self.incidents() if one["policy"] == policy]
            return found[0] if found else None

        return wait_until(f"an incident of {policy}", seconds, newest)

    # --- the model servers ---------------------------------------------------------------------

    def await_serving(self, port: int = PORT, seconds: float = 60) -> None:
        """Wait until the model server on `port` answers."""
        ask = f"curl -fsS -m 5 -o /dev/null http://127.0.0.1:{port}/health"
        wait_until(f"the model server on {port} answers", seconds, lambda: self.machine.status(ask) == 0)

    def main_pid(self, unit: str = UNIT) -> int:
        """Return the pid of the unit's main process, 0 if there is none."""
        return int(self.machine.ssh(f"systemctl show -P MainPID {unit}"))

    def await_seen(self, pid: int) -> None:
        """Wait until the agent has had its look at which unit a process belongs to (every 5 s)."""
        self.machine.ssh(f"test -d /proc/{pid} && sleep 6")

    # --- what was asked of systemd ---------------------------------------------------------------

    def mark(self) -> str:
        """Return a place in the journal to count from."""
        out = self.machine.ssh("journalctl -n 0 --show-cursor")
        found = re.search(r"-- cursor: (\S+)", out)
        if found is None:
            raise LabError(f"the journal has no cursor: {out!r}")
        return found[1]

    def manager_log(self, mark: str) -> list[dict[str, Any]]:
        """Return what the manager itself logged since `mark`.

        Filtered here and not by journalctl: with a match, systemd 252 leaves out the first entry after a cursor that
        does not match.
        """
        fields = "--output-fields=_PID,MESSAGE,UNIT,JOB_ID,JOB_TYPE"
        out = self.machine.ssh(f"journalctl --after-cursor='{mark}' -o json --no-pager {fields}")
        return [entry for entry in map(json.loads, out.splitlines()) if entry.get("_PID") == "1"]

    def jobs(self, mark: str, unit: str = "lab-*.service") -> list[tuple[str, str]]:
        """Return (type, unit) of every job that systemd ran for `unit` since `mark`.

        Read from what the manager logs of itself, which no plugin or test can forget to count. A
        restart is one job that logs a stop, a restart and a start.
        """
        pattern = re.compile(unit.replace(".", r"\.").replace("*", ".*"))
        found: dict[str, tuple[str, str]] = {}
        for entry in self.manager_log(mark):
            name, job = entry.get("UNIT", ""), f"{entry['_BOOT_ID']}/{entry['JOB_ID']}" if "JOB_ID" in entry else ""
            if job and pattern.fullmatch(name) and found.get(job, ("", ""))[0] != "restart":
                found[job] = (entry["JOB_TYPE"], name)
        return list(found.values())

    # --- messages --------------------------------------------------------------------------------

    def titles(self) -> list[str]:
        """Return the subjects of the mails so far."""
        return [str(one["subject"]) for one in self.mail.messages]

    def await_mail(self, words: str, seconds: float = 60) -> str:
        """Wait for a mail whose subject or text matches the regular expression; return its subject."""

        def found() -> str | None:
            for one in list(self.mail.messages):
                text = f"{one['subject']}\n{body(one)}"
                if re.search(words, text):
                    return str(one["subject"])
            return None

        try:
            return wait_until(f"a mail with {words!r}", seconds, found)
        except LabError as error:
            raise LabError(f"{error}; there are {self.titles()}") from None

    # --- afterwards --------------------------------------------------------------------------------

    def autopsy(self) -> str:
        """Return what helps to understand a failure."""
        try:
            return self.machine.ssh(
                "bandog incidents; bandog status; systemctl --no-pager --failed; "
                f"journalctl --no-pager -b -o short-monotonic | grep -v '{FILLER[:20]}' | tail -n 60",
                check=False,
                deadline=60,
            )
        except LabError as error:
            return f"no autopsy: {error}"


def body(message: Any) -> str:
    """Return a mail's text."""
    part = message.get_body(preferencelist=("plain", "html"))
    return "" if part is None else str(part.get_content())
