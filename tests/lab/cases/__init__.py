"""The scenarios: one module a subject; each registers its own.

Every machine installs first and removes last. On the main release two machines share the work, so that what
waits long on one (floods, power cuts, used-up budgets) leaves time to the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """One machine: its name in the output, its release, and the modules whose scenarios it plays, in order.

    `smoke` leaves only those of them that are marked so.
    """

    name: str
    release: str
    modules: tuple[str, ...]
    smoke: bool = False


BERTHS = (
    Berth(name="bookworm", release="bookworm", modules=("install", "remove"), smoke=True),
    Berth(name="trixie", release="trixie", modules=("install", "restart", "hung", "plugins", "adverse", "remove")),
    Berth(
        name="trixie-2",
        release="trixie",
        modules=("start", "flood", "crash", "budgets", "powercycle", "gpus", "dying_gpu", "adopt"),
    ),
)
