"""The three kinds of configuration files as pydantic models: their keys, defaults and schema.

Field descriptions go to the JSON Schema, so editors show them. Unknown keys are errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from ..domain.model import Severity
from . import values


class Model(BaseModel):
    """Base of all: closed, frozen, no guessing of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


# --- policy ------------------------------------------------------------------------------------

Scalar = str | int | float | bool


class FactRange(Model):
    """A test on a fact in words: inclusive bounds for numbers, a glob for text."""

    min: float | None = None
    max: float | None = None
    glob: str | None = None


def _test_form(value: Any) -> str | None:
    if isinstance(value, dict):
        return "range"
    if isinstance(value, list):
        return "any"
    return None if value is None else "equal"


FactTestModel = Annotated[
    Annotated[Scalar, Tag("equal")]
    | Annotated[Annotated[list[Scalar], Field(min_length=1)], Tag("any")]
    | Annotated[FactRange, Tag("range")],
    Discriminator(_test_form),
]


class MatchModel(Model):
    """Which findings a policy takes."""

    kind: Annotated[values.TextList, Field(min_length=1)]
    """A kind of finding, a glob, or a list of them."""
    subject: values.TextList = []
    """Globs on the subject, like gpu:0000:e5:00.0; none = any."""
    facts: dict[str, FactTestModel] = {}
    """Tests on facts: a value, a list (any of), or a map of min, max, glob. An absent fact never matches."""
    severity: Severity | None = None
    """The least severity that is taken."""
    count: values.Count | None = None
    """Take it only when so many came: 3 within 10m."""


class StepModel(Model):
    """One rung of the ladder."""

    do: str
    """The action."""
    with_: dict[str, Any] = Field(default={}, alias="with")
    """The action's own arguments; $subject, $host and the finding's facts may stand in text."""
    after: values.Duration | None = None
    """Begin no earlier than this after opening, and only while the finding is still raised."""
    limit: values.Limit | None = None
    """How often this step may run: 1 per 24h. Used up, the next step begins."""


class PolicyModel(Model):
    """A policy: which findings, what ladder, what limits."""

    policy: values.Name
    """The policy's name, unique over all files."""
    description: str = ""
    """One sentence for people."""
    match: MatchModel
    severity: Severity | None = None
    """How bad the incident is; unset = as the finding says."""
    quiet: values.Duration | None = None
    """An incident stays open this long after the last finding; default 30m."""
    resolve: Literal["proved", "quiet", "cleared"] = "proved"
    """When it ends: after proof and quiet, by time alone, or when a probe or a line says so."""
    notify: values.TextList = []
    """Who is told at open, at each step and at the end."""
    steps: list[StepModel] = []
    """The ladder, the mildest first."""
    inhibits: values.TextList = []
    """Incidents of these kinds that share a GPU or service join this one."""
    mode: values.Mode | None = None
    """observe, enforce or the actions that may act; the strictest of main file, policy, service wins."""


# --- service -----------------------------------------------------------------------------------


class StartModel(Model):
    """How the service is started."""

    order: Annotated[int, Field(ge=0, le=9999)] = 100
    """Its place among the services; lower starts first."""
    settle: values.Duration | None = None
    """How long to wait after it is ready before the next one starts; default 20s."""
    timeout: values.Duration | None = None
    """How long it may take to become ready; default 30m. A start that makes progress is given up to 2 h."""
    parallel: bool = False
    """true: it may start at the same time as others that say so too, where they share no GPU."""


class ReadyModel(Model):
    """How to tell that the service serves: exactly one of these."""

    http: values.Url | None = None
    """A URL that answers 2xx when it serves."""
    tcp: values.Tcp | None = None
    """host:port that accepts connections."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """A program and its arguments that exits 0."""
    unit: Literal[True] | None = None
    """true: being active is enough."""


class ProgressModel(Model):
    """Where progress shows: exactly one of these."""

    metrics: values.Url | None = None
    """A Prometheus metrics URL."""
    log: str | None = None
    """A word or phrase that the unit logs at each step."""
    file: values.AbsolutePath | None = None
    """A file that is written at each step."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """A program that prints a counter."""


class CanaryModel(Model):
    """A small real request that proves that the model answers."""

    openai: values.Url
    """Base URL of an OpenAI-compatible server."""
    model: str = "auto"
    """The model's name; auto = the first that the server lists."""
    credential: values.Name | None = None
    """The credential that holds the API key."""


class ProfileModel(Model):
    """One way to run the service on fewer GPUs."""

    count: Annotated[int, Field(ge=1, le=1024)]
    """How many GPUs it needs."""
    env: dict[values.EnvName, values.EnvValue] = {}
    """Environment variables of the unit."""
    devices: Literal["index", "uuid"] | None = None
    """How CUDA_VISIBLE_DEVICES names them: index (unset), or uuid for programs that take UUIDs; vLLM does not."""


class ServiceModel(Model):
    """A service: one systemd unit that bandog looks after."""

    service: values.Name
    """The service's name, unique over all files."""
    unit: values.Unit
    """The systemd unit."""
    kind: Literal["serving", "training"] = "serving"
    gpus: values.Gpus | None = None
    """all, or a list of PCI addresses and UUIDs; unset = it uses none."""
    start: StartModel = StartModel()
    ready: ReadyModel = ReadyModel(unit=True)
    progress: ProgressModel | None = None
    canary: CanaryModel | None = None
    profiles: list[ProfileModel] = []
    """Best first; the first whose GPUs are present and healthy is used. None = it keeps its GPUs."""
    mode: values.Mode | None = None
    """observe, enforce or the actions that may act; the strictest of main file, policy, service wins."""


# --- main file ---------------------------------------------------------------------------------


class NotifyModel(Model):
    """Where messages go."""

    urls: Annotated[values.SecretUrls, Field(min_length=1)]
    """credential:NAME, file:/PATH or Apprise URLs; one, or a list."""


class WindowModel(Model):
    """A maintenance window."""

    days: Annotated[list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]], Field(min_length=1)]
    """The days on which it begins."""
    from_: values.TimeOfDay = Field(alias="from")
    """When it begins."""
    to: values.TimeOfDay
    """When it ends; at or before `from` = on the next day."""
    tz: values.Zone
    """The time zone."""


class FleetLockModel(Model):
    """A FleetLock server that lets one host at a time reboot."""

    url: values.Url
    group: values.Name = "default"
    id: str = ""
    """This host's id; unset = its machine id."""


class HeartbeatModel(Model):
    """A dead-man ping: the other end notices when it stops."""

    url: values.SecretUrl
    every: values.Duration | None = None
    """Default 5m."""


class MetricsModel(Model):
    """Our own metrics."""

    textfile: values.AbsolutePath
    """Where to write them for node_exporter's textfile collector; the name ends in .prom."""


class EvidenceModel(Model):
    """How much evidence the action of that name keeps; its other options stand under plugins."""

    max_total: values.Size | None = None
    """All bundles together; default 1GiB."""
    max_each: values.Size | None = None
    """One bundle; default 32MiB."""
    keep: values.Duration | None = None
    """Default 90d."""


class MainModel(Model):
    """The main file and the files of conf.d, merged."""

    mode: values.Mode = "observe"
    """observe: look and tell, never act. enforce: act. A list: only these actions act."""
    notify: dict[values.Name, NotifyModel] = {}
    """Who is told, by name."""
    windows: dict[values.Name, WindowModel] = {}
    """When something disruptive that can wait may happen."""
    budgets: dict[str, values.Limit] = {}
    """How often it may act: per service under an action's name, in all under host, reboots under reboot."""
    fleet_lock: FleetLockModel | None = None
    plugins: dict[str, Any] = {}
    """A plugin's options under its name, or off."""
    kubernetes: bool = False
    """true: act although a kubelet runs on this host."""
    metrics: MetricsModel | None = None
    heartbeat: HeartbeatModel | None = None
    evidence: EvidenceModel = EvidenceModel()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much we log."""
