"""Programs that look at GPUs and compute nothing on them: never to blame for what the driver says of their call."""

from __future__ import annotations

MONITORS = frozenset(
    {
        "nvidia-smi",
        "nvidia-debugdum",  # nvidia-debugdump
        "nvidia-bug-repo",  # nvidia-bug-report.sh
        "nvidia-persiste",  # nvidia-persistenced
        "nv-hostengine",
        "nv-fabricmanage",  # nv-fabricmanager
        "nvidia-fabricma",
        "nvidia-device-p",  # the Kubernetes device plugin
        "nvidia-containe",  # nvidia-container-cli
        "nvidia-settings",
        "dcgmi",
        "dcgm",
        "dcgm-exporter",
        "dcgmproftester",
        "nvidia_gpu_expo",  # nvidia_gpu_exporter
        "nvidia_gpu_prom",  # nvidia_gpu_prometheus_exporter
        "nvidia-exporter",
        "node_exporter",
        "prometheus",
        "telegraf",
        "netdata",
        "go.d.plugin",
        "zabbix_agentd",
        "zabbix_agent2",
        "otelcol",
        "gpud",
        "nvtop",
        "nvitop",
        "gpustat",
        "btop",
        "bandog",
        "bandog-gpu",
    }
)
"""Names as the kernel keeps them: the first 15 bytes (TASK_COMM_LEN, proc_pid_comm(5))."""
OUR_UNIT = "bandog.service"


def is_monitor(comm: str) -> bool:
    """True for the comm, or the longer name in a log line, of a program that only looks."""
    return comm.rpartition("/")[2][:15] in MONITORS
