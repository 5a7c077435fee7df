"""What has been counted, as the pages of vLLM and SGLang show it.

Names: https://docs.vllm.ai/en/stable/usage/metrics/ and https://docs.sglang.io/references/production_metrics.html
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SECONDS = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Histogram:
    """Counts by upper bound, as Prometheus wants them."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        """Add one value."""
        self.counts = self.counts or [0] * len(self.bounds)
        self.total += value
        self.count += 1
        for place, bound in enumerate(self.bounds):
            self.counts[place] += value <= bound


@dataclass
class Stats:
    """Gauges stand as the engine's last output left them: an engine that freezes leaves them as they are."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    iterations: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    created: float = field(default_factory=time.time)


class Page:
    """A page in Prometheus' text format."""

    def __init__(self, labels: str, created: float | None = None) -> None:
        self.lines: list[str] = []
        self._labels = labels
        self._created = created

    def _head(self, name: str, kind: str, about: str) -> None:
        self.lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def gauge(self, name: str, about: str, value: float) -> None:
        """Add one gauge."""
        self._head(name, "gauge", about)
        self.lines.append(f"{name}{{{self._labels}}} {float(value)}")

    def counter(self, name: str, about: str, values: Iterable[tuple[str, float]]) -> None:
        """Add a counter with its series (further labels, value), and when each was made, as the client library does."""
        series = list(values)
        self._head(f"{name}_total", "counter", about)
        self.lines += [f"{name}_total{{{more}{self._labels}}} {float(value)}" for more, value in series]
        if self._created is None:
            return
        self._head(f"{name}_created", "gauge", about)
        self.lines += [f"{name}_created{{{more}{self._labels}}} {self._created!r}" for more, _ in series]

    def histogram(self, name: str, about: str, values: Histogram) -> None:
        """Add a histogram."""
        self._head(name, "histogram", about)
        counts = values.counts or [0] * len(values.bounds)
        pairs = zip(values.bounds, counts, strict=True)
        self.lines += [f'{name}_bucket{{{self._labels},le="{float(bound)}"}} {float(count)}' for bound, count in pairs]
        self.lines.append(f'{name}_bucket{{{self._labels},le="+Inf"}} {float(values.count)}')
        self.lines.append(f"{name}_count{{{self._labels}}} {float(values.count)}")
        self.lines.append(f"{name}_sum{{{self._labels}}} {float(values.total)}")


def of_vllm(stats: Stats, model: str) -> str:
    """Return vLLM's page."""
    page = Page(f'engine="0",model_name="{model}"', stats.created)
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", stats.running)
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting)
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage)
    page.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", [("", 0)])
    page.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", [("", stats.prompt_tokens)])
    page.counter("vllm:generation_tokens", "Number of generation tokens processed.", [("", stats.generation_tokens)])
    reasons = [(f'finished_reason="{reason}",', count) for reason, count in stats.finished.items()]
    page.counter("vllm:request_success", "Count of successfully processed requests.", reasons)
    page.histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", stats.iterations)
    page.histogram(
        "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", stats.first_token
    )
    page.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", stats.latency)
    return "\n".join(page.lines) + "\n"


def of_sglang(stats: Stats, model: str) -> str:
    """Return SGLang's page, as with --enable-metrics."""
    page = Page(f'model_name="{model}"')  # its client runs in several processes and says no times
    page.gauge("sglang:num_running_reqs", "The number of running requests", stats.running)
    page.gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue", stats.waiting)
    page.gauge("sglang:token_usage", "The token usage", stats.kv_usage)
    page.counter("sglang:prompt_tokens", "Number of prefill tokens processed.", [("", stats.prompt_tokens)])
    page.counter("sglang:generation_tokens", "Number of generation tokens processed.", [("", stats.generation_tokens)])
    page.counter("sglang:num_requests", "Number of requests processed.", [("", sum(stats.finished.values()))])
    page.histogram(
        "sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.", stats.first_token
    )
    page.histogram(
        "sglang:e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", stats.latency
    )
    return "\n".join(page.lines) + "\n"
