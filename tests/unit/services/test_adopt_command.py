"""Command lines and model files as people and strangers wrote them: what is read of them, and that nothing raises."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.services.adopt_command import read
from bandog.services.adopt_model import Model, read_model
from bandog.services.adopt_record import Link, Record, parse
from bandog.services.adopt_text import UnitText
from bandog.services.adopt_text import parse as parse_unit


@pytest.mark.parametrize(
    ("line", "engine", "client", "verb"),
    [
        ("/opt/vllm/bin/vllm serve m", "vllm", "", ""),
        ("/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model m", "vllm", "", ""),
        ("/usr/bin/python3 -m sglang.launch_server --model m", "sglang", "", ""),
        (
            "/usr/bin/docker run --name vllm lmsysorg/sglang:v0.4 python3 -m sglang.launch_server",
            "sglang",
            "docker",
            "run",
        ),
        ("/usr/bin/docker run --name vllm ghcr.io/ggml-org/llama.cpp:server", "", "docker", "run"),
        ("/usr/bin/docker --context x run vllm/vllm-openai@sha256:00", "vllm", "docker", "run"),
        ("/usr/bin/docker start -a vllm", "vllm", "docker", "start"),
        ("/bin/bash -c 'exec text-generation-launcher --num-shard 2'", "tgi", "", ""),
        ("/usr/bin/ollama serve", "", "", ""),
        ("", "", "", ""),
    ],
)
def test_engines_and_clients_are_told_by_what_is_run(line: str, engine: str, client: str, verb: str) -> None:
    one = read(line)
    assert (one.engine, one.client, one.verb) == (engine, client, verb)


@given(st.text())
def test_no_line_raises(line: str) -> None:
    one = read(line)
    assert one.parallel is not None and one.others >= 1 and one.share is not None
    _ = (one.nodes, one.model, one.context, one.port, one.wants_key, one.sets_devices, one.container)


@given(
    st.lists(st.sampled_from(["vllm", "serve", "-tp", "4", "--gpus", "docker", "run", "'", '"', "$X", "=", "--name"]))
)
def test_no_mixture_of_words_raises(words: list[str]) -> None:
    for glue in (" ", "=", ""):
        for place in read(glue.join(words)).parallel:
            assert place.end > place.start >= 0


@given(st.text())
def test_no_text_of_a_unit_raises(text: str) -> None:
    whole = UnitText(settings=parse_unit(text))
    whole.environment()


def test_settings_add_up_are_cleared_and_joined_as_systemd_does() -> None:
    text = "[Service]\nExecStart=a \\\n# no\n  b\nExecStart=c\n;x\nEnvironment=A=1 'B=2 3'\n[X]\nExecStart=d\n"
    whole = UnitText(settings=parse_unit(text))
    assert whole.values("Service", "ExecStart") == ("a b", "c")
    assert whole.environment() == {"A": "1", "B": "2 3"}
    cleared = UnitText(settings=parse_unit(text + "[Service]\nExecStart=\nExecStart=e\n"))
    assert cleared.values("Service", "ExecStart") == ("e",)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "legal"),
    [
        (52, 52, [1, 2, 4]),  # vllm-project/vllm#414
        (28, 4, [1, 2, 4]),
        (40, 8, [1, 2, 4, 8]),  # 5 heads a GPU are legal, 8 key-value heads are not shared by 5
        (64, 8, [1, 2, 4, 8]),
    ],
)
def test_sizes_are_legal_by_heads_and_key_value_heads(heads: int, kv_heads: int, legal: list[int]) -> None:
    model = Model(heads=heads, kv_heads=kv_heads)
    assert [size for size in range(1, 9) if model.takes(size)] == legal


def test_a_quantised_block_must_not_be_cut() -> None:
    assert Model(heads=64, kv_heads=8, intermediate=2048, group=128).takes(8)
    assert not Model(heads=64, kv_heads=8, intermediate=1024, group=256).takes(8)


def test_a_models_memory_is_its_weights_its_cache_and_the_runtime(tmp_path: Path) -> None:
    config = {"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "num_hidden_layers": 80}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config, "max_position_embeddings": 131072}))
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"0" * 1000)
    model = read_model(tmp_path)
    assert (model.weights, model.head_dim, model.context) == (2000, 128, 131072)
    # 80 layers x 8 heads x 128 x key and value x 2 bytes = 320 KiB a token
    assert model.needs(1) == 2000 + (4 << 30) + 131072 * 327680
    assert model.needs(8, context=1024) == 250 + (4 << 30) + 1024 * 40960
    assert Model(heads=1).needs(1) is None


@pytest.mark.parametrize("text", ["", "[", "[]", "null", '{"num_attention_heads": -1}', '{"hidden_size": 1.5}'])
def test_a_config_json_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_model(tmp_path)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=5)
)
def test_no_config_json_breaks_anything(value: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps({"text_config": value, "quantization_config": value}))
        try:
            model = read_model(Path(name))
        except ValueError:
            return
        assert isinstance(model.takes(2), bool)


def test_a_record_is_read_as_it_was_written() -> None:
    record = Record(
        unit="a\\x2db.service",
        place="/p",
        files=("/etc/bandog/services.d/a.yaml",),
        links=(Link(path="/etc/systemd/system/multi-user.target.wants/a\\x2db.service", target="../a.service"),),
        mute="/m",
    )
    assert parse(record.head + "[Service]\n", "/p") == record
    assert parse("[Service]\n#@ nonsense\n", "/p") is None
