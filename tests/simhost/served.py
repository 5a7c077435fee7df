"""A model that is served on simulated GPUs: fakevllm as the program of a unit that reads bandog's file of it."""

from __future__ import annotations

from pathlib import Path

import fakenvml
from bandog import overrides

from .sink import free_port
from .units import SimulatedSystemd, Unit
from .vllm import Client, command

SERVICE = """\
service: qwen
unit: {unit}
gpus: all
start: {{settle: 1s, timeout: 10m}}
ready: {{http: "{url}/health"}}
canary: {{openai: "{url}"}}
profiles:
  - {{count: 4, env: {{TP_SIZE: "4"}}}}
  - {{count: 2, env: {{TP_SIZE: "2"}}}}
"""
PLUGINS = """\
plugins:
  gpu: {{environment: {environment}}}
  relaunch: {{environment: {environment}}}
"""


class Served(Client):
    """Serves on four GPUs from the moment that `boot` returns; `cards` is their state, below `root`.

    `load` is how long the model loads, in seconds. `build` is where the driver library is compiled.
    """

    def __init__(self, root: Path, *, build: Path, unit: str = "qwen.service", load: float = 0.2) -> None:
        super().__init__(free_port())
        root.mkdir(parents=True, exist_ok=True)
        self.cards = fakenvml.State(root / "state", 4)
        self.unit = unit
        self._log = root / "server.log"
        self.service_file = SERVICE.format(unit=unit, url=self.url)
        library = fakenvml.build(build)
        environment = ", ".join(f'{key}: "{value}"' for key, value in self.cards.env(library).items())
        self.plugins = PLUGINS.format(environment=f"{{{environment}}}")
        """What the main file needs to know the GPUs."""
        self._environment = {
            "TP_SIZE": "4",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "FAKENVML_STATE": str(self.cards.path),
            "FAKEVLLM_LOAD": str(load),
            "FAKEVLLM_PROFILE": "0.1",
        }

    def boot(self, systemd: SimulatedSystemd, run: Path) -> None:
        """Make it a unit of this host, whose agent has `run` for its runtime directory, and wait until it serves."""
        unit = Unit(
            argv=command(self.port, "--tensor-parallel-size", "${TP_SIZE}"),
            environment=self._environment,
            environment_file=overrides.path_of(run, self.unit),
            log=self._log,
        )
        systemd.units[self.unit] = unit
        systemd.boot(self.unit)
        self.until(lambda: self.status("/health") == 200)

    @property
    def log(self) -> str:
        """Everything that its processes printed."""
        return self._log.read_text("utf-8", "replace")

    @property
    def held(self) -> set[str]:
        """The addresses of the GPUs that living processes hold."""
        living = [one for one in self.cards.claims.iterdir() if Path("/proc", one.name).is_dir()]
        uuids = {line.split()[0] for claim in living for line in claim.read_text().splitlines()}
        return {one["pci"] for one in self.cards.read()["gpus"] if one["uuid"] in uuids}
