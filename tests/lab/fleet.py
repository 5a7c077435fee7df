"""Four model servers with a GPU each, what befalls them, and what people read of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .lab import PORT, Lab
from .machine import LabError, wait_until

NAMES = ("m0", "m1", "m2", "m3")
SERVICE = """service: {name}
unit: lab-{name}.service
gpus: ["{gpu}.0"]
ready: {{http: "http://127.0.0.1:{port}/health"}}
"""


def gpu(name: str) -> str:
    """Return the address of the one GPU of a service, as the driver prints it."""
    return f"0000:{NAMES.index(name) + 1:02x}:00"


def service_file(name: str) -> str:
    """Return the file that tells the agent of a service."""
    return SERVICE.format(name=name, gpu=gpu(name), port=PORT + NAMES.index(name))


def fault(name: str, pid: int) -> str:
    """Return the driver's line about a contained ECC error on the GPU of a service."""
    return f"NVRM: Xid (PCI:{gpu(name)}): 94, pid={pid}, name=python3, Contained: SM (0x1). RST: No, D-RST: No"


def begin(lab: Lab, policies: dict[str, str], *, more: str = "", start: bool = True) -> None:
    """Begin anew with the four services, in enforce."""
    lab.reset(mode="enforce", more=more, policies=policies, services=NAMES, start=False)
    for name in NAMES:
        lab.machine.put(service_file(name), f"/etc/bandog/services.d/{name}.yaml")
    if start:
        lab.machine.ssh("systemctl start bandog")


def run_of(lab: Lab, unit: str) -> str:
    """Return what tells one run of a unit from another."""
    return lab.machine.ssh(f"systemctl show -p MainPID -p InvocationID -p NRestarts {unit}")


def posts(lab: Lab, words: str) -> list[str]:
    """Return the texts at the webhook with these words."""
    return [one["message"] for one in lab.hook.messages if words in one["message"]]


def await_post(lab: Lab, words: str, seconds: float = 60) -> None:
    """Wait until the webhook has got a text with these words."""
    try:
        wait_until(f"a post with {words!r}", seconds, lambda: posts(lab, words))
    except LabError as error:
        raise LabError(f"{error}; there is {[one['message'] for one in lab.hook.messages]}") from None


def used(lab: Lab) -> dict[str, int]:
    """Return how much of each budget is used."""
    return {one["key"]: one["used"] for one in lab.status()["budgets"]}


def of_policy(lab: Lab, policy: str) -> list[dict[str, Any]]:
    """Return the incidents of a policy, the oldest first."""
    return [one for one in reversed(lab.incidents()) if one["policy"] == policy]


def restarts(lab: Lab, mark: str) -> Counter[str]:
    """Return how often systemd was asked to restart each unit since `mark`."""
    return Counter(unit for kind, unit in lab.jobs(mark) if kind == "restart")
