"""bandog: a watchdog for GPU servers. These names, and no others, are the API for plugin authors."""

from __future__ import annotations

from .config.types import Duration
from .domain import subjects
from .domain.codec import from_json, to_json
from .domain.gpus import Exclusion, GpuEvent, GpuLook, Holder, KnownGpu, Look, UnknownGpu
from .domain.model import (
    Fact,
    Facts,
    Finding,
    Incident,
    Instant,
    Proof,
    ProofState,
    Record,
    Request,
    Result,
    ResultState,
    Severity,
    Unknown,
)
from .hookspecs import hookimpl
from .host import cgroups, processes
from .host.processes import Task, task_state, tasks_in_cgroup
from .host.site import (
    Answer,
    CanaryAnswer,
    ChildOutcome,
    Clock,
    Gpus,
    Host,
    HttpReply,
    Readiness,
    Resident,
    Services,
    Site,
)
from .host.systemd_types import JobOutcome, Systemd, SystemdError, UnitState
from .plugin import Action, LogDetector, Options, Probe
from .services import overrides, profiles
from .services.belongings import UnitProcesses, whose
from .services.inventory import unfit
from .services.monitors import is_monitor

__all__ = [
    "Action",
    "Answer",
    "CanaryAnswer",
    "ChildOutcome",
    "Clock",
    "Duration",
    "Exclusion",
    "Fact",
    "Facts",
    "Finding",
    "GpuEvent",
    "GpuLook",
    "Gpus",
    "Holder",
    "Host",
    "HttpReply",
    "Incident",
    "Instant",
    "JobOutcome",
    "KnownGpu",
    "LogDetector",
    "Look",
    "Options",
    "Probe",
    "Proof",
    "ProofState",
    "Readiness",
    "Record",
    "Request",
    "Resident",
    "Result",
    "ResultState",
    "Services",
    "Severity",
    "Site",
    "Systemd",
    "SystemdError",
    "Task",
    "UnitProcesses",
    "UnitState",
    "Unknown",
    "UnknownGpu",
    "cgroups",
    "from_json",
    "hookimpl",
    "is_monitor",
    "overrides",
    "processes",
    "profiles",
    "subjects",
    "task_state",
    "tasks_in_cgroup",
    "to_json",
    "unfit",
    "whose",
]
