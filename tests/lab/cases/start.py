"""Nothing but the .deb installed: where a machine's own scenarios are not about installing."""

from __future__ import annotations

from ..lab import Lab
from ..scenario import scenario
from .install import install


@scenario("the .deb is installed")
def installed(lab: Lab) -> None:
    lab.machine.put(lab.deb, "/root/bandog.deb")
    install(lab)
    assert lab.machine.ssh("systemctl is-active bandog").strip() == "active"
