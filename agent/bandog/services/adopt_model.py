"""The model's own `config.json`: over how many GPUs it can be split, and what each of them must hold.

The rules are those that vLLM and SGLang assert (vllm-project/vllm#414, #11147): the size divides the attention heads,
and it divides the key-value heads or is a multiple of them, which are then replicated. Memory is an estimate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNTIME = 4 << 30
"""Bytes a GPU for CUDA, NCCL and graphs; 2 to 4 GB are seen."""
_MOST = 4 << 20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What `config.json` says; 0 or None where it does not. `weights` is the size of the weight files in bytes."""

    heads: int = 0
    kv_heads: int = 0
    layers: int = 0
    head_dim: int = 0
    context: int = 0
    intermediate: int = 0
    group: int = 0
    latent: int = 0
    weights: int | None = None

    def takes(self, size: int) -> bool:
        """Return whether the model can be split over `size` GPUs by tensor parallelism."""
        if not self.heads or self.heads % size:
            return False
        if self.kv_heads and self.kv_heads % size and size % self.kv_heads:
            return False
        if self.intermediate and self.intermediate % size:
            return False
        return not (self.group and self.intermediate and (self.intermediate // size) % self.group)

    def needs(self, size: int, *, stages: int = 1, context: int | None = None, kv_bytes: int = 2) -> int | None:
        """Return the bytes that each GPU must hold for one full context, None where that is not known."""
        tokens = context or self.context
        if not self.weights or not self.layers or not tokens:
            return None
        if self.latent:  # multi-head latent attention keeps one compressed vector a layer, on every GPU
            token = self.layers * self.latent * kv_bytes
        else:
            token = 2 * self.layers * max(1, self.kv_heads // size) * self.head_dim * kv_bytes
        return self.weights // (size * stages) + RUNTIME + token // stages * tokens


def read_model(folder: Path) -> Model:
    """Return the model of a folder. Raises ValueError for a `config.json` that is none, OSError without one."""
    place = folder / "config.json"
    with place.open("rb") as file:
        text = file.read(_MOST)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is no JSON") from error
    if not isinstance(config, dict):
        raise ValueError(f"{place} is no map")
    inner = config.get("text_config")
    told = {**config, **inner} if isinstance(inner, dict) else config
    heads = _number(told, place, "num_attention_heads", "n_head")
    kv_heads = _number(told, place, "num_key_value_heads") or heads
    hidden = _number(told, place, "hidden_size", "n_embd")
    quantised = told.get("quantization_config")
    return Model(
        heads=heads,
        kv_heads=kv_heads,
        layers=_number(told, place, "num_hidden_layers", "n_layer"),
        head_dim=_number(told, place, "head_dim") or (hidden // heads if heads else 0),
        context=_number(told, place, "max_position_embeddings", "n_positions"),
        intermediate=_number(told, place, "intermediate_size"),
        group=_group(quantised) if isinstance(quantised, dict) else 0,
        latent=_number(told, place, "kv_lora_rank") + _number(told, place, "qk_rope_head_dim")
        if told.get("kv_lora_rank")
        else 0,
        weights=_weights(folder),
    )


def _number(told: Mapping[str, Any], place: Path, *names: str) -> int:
    for name in names:
        value = told.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise ValueError(f"{place}: {name} is {json.dumps(value)[:40]}, no number that a model has")
        return value
    return 0


def _group(quantised: Mapping[str, Any]) -> int:
    """Return the size of a quantisation block or group along the split, 0 without."""
    block = quantised.get("weight_block_size")
    value = block[0] if isinstance(block, list) and block else quantised.get("group_size")
    return value if type(value) is int and 0 < value < 1 << 20 else 0


def _weights(folder: Path) -> int | None:
    """Return the size of the weight files of the first form that is there; a folder may hold the same twice."""
    for suffix in _WEIGHTS:
        files = [one for one in folder.glob(f"*{suffix}") if not one.name.startswith("consolidated")]
        sizes = [one.stat().st_size for one in files if one.is_file()]
        if sizes:
            return sum(sizes)
    return None
