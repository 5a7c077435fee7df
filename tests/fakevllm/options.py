"""The command line: vLLM's own options as far as they matter here, and those of the lab."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How this server was started; times in seconds, memory as shares of a card's total."""

    model: str
    host: str
    port: int
    tensor_parallel: int
    heads: int
    kv_heads: int
    utilization: float
    max_model_len: int
    max_num_seqs: int
    api_key: str
    access_log: bool
    dialect: str
    load: float
    profile: float
    weights: float
    peak: float
    step: float
    patience: float
    control: str
    fifo: str


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Read the command line; what the environment says is the default. Exits with 2 for nonsense."""

    def default(name: str, otherwise: str) -> str:
        return environ.get(name) or otherwise

    parser = argparse.ArgumentParser(prog="vllm", description=__doc__, allow_abbrev=False)
    parser.add_argument("words", nargs="*", help="serve MODEL")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(default("FAKEVLLM_PORT", "8000")))
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=int(default("TP_SIZE", "1")))
    parser.add_argument("--gpu-memory-utilization", type=float, default=float(default("GPU_MEMORY_UTILIZATION", "0.9")))
    parser.add_argument("--max-model-len", type=int, default=int(default("MAX_MODEL_LEN", "131072")))
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--api-key", default=default("VLLM_API_KEY", ""))
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    lab = parser.add_argument_group("of the lab")
    lab.add_argument("--heads", type=int, default=int(default("FAKEVLLM_HEADS", "64")))
    lab.add_argument("--kv-heads", type=int, default=int(default("FAKEVLLM_KV_HEADS", "8")))
    lab.add_argument("--dialect", choices=("vllm", "sglang"), default=default("FAKEVLLM_DIALECT", "vllm"))
    lab.add_argument("--load-seconds", type=float, default=float(default("FAKEVLLM_LOAD", "1")))
    lab.add_argument("--profile-seconds", type=float, default=float(default("FAKEVLLM_PROFILE", "0.5")))
    lab.add_argument("--weights", type=float, default=float(default("FAKEVLLM_WEIGHTS", "0.05")))
    lab.add_argument("--peak", type=float, default=float(default("FAKEVLLM_PEAK", "0.10")))
    lab.add_argument("--step-seconds", type=float, default=float(default("FAKEVLLM_STEP", "0.005")))
    lab.add_argument("--patience-seconds", type=float, default=float(default("FAKEVLLM_PATIENCE", "4")))
    lab.add_argument("--control", default=default("FAKEVLLM_CONTROL", ""), help="a file that holds the mode")
    lab.add_argument("--fifo", default=default("FAKEVLLM_FIFO", ""), help="where the FIFO of d-state is made")
    given, others = parser.parse_known_args(arguments)
    if others:
        print(f"options without a meaning here: {' '.join(others)}", flush=True)
    words = given.words[1:] if given.words[:1] == ["serve"] else given.words
    return Options(
        model=given.served_model_name or given.model or (words[0] if words else "qwen"),
        host=given.host,
        port=given.port,
        tensor_parallel=given.tensor_parallel_size,
        heads=given.heads,
        kv_heads=given.kv_heads,
        utilization=given.gpu_memory_utilization,
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        api_key=given.api_key,
        access_log=not given.disable_uvicorn_access_log,
        dialect=given.dialect,
        load=given.load_seconds,
        profile=given.profile_seconds,
        weights=given.weights,
        peak=min(given.gpu_memory_utilization + given.peak, 0.99),
        step=given.step_seconds,
        patience=given.patience_seconds,
        control=given.control,
        fifo=given.fifo,
    )
