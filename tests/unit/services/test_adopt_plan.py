"""What adopting a unit would write: the whole diff for each kind of unit, and what it says that it cannot do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bandog import KnownGpu, UnitState
from bandog.config.models import ServiceModel
from bandog.config.translate import validate
from bandog.config.yaml12 import read_document
from bandog.host.paths import Paths
from bandog.services import adopt_plan
from bandog.services.adopt_locate import model_folder
from bandog.services.adopt_model import Model, read_model
from bandog.services.adopt_plan import Plan, Surroundings
from bandog.services.adopt_record import record_of
from bandog.services.adopt_unit import Found, read_unit
from bandog.services.adopt_write import carry_out, diff
from bandog.services.registry import Service
from bandog.testing import FakeClock

FOLDER = Path(__file__).parent / "adopted"
CASES = ("vllm-qwen.service", "docker-qwen.service", "sglang.service", "tgi.service", "qwen.container")
QWEN = Model(heads=64, kv_heads=8, layers=64, head_dim=128, context=131072, weights=65 << 30)
AROUND = Surroundings(model=QWEN, memory=80 << 30)
MODEL = {"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "num_hidden_layers": 64}


def host(root: Path, name: str, text: str, *, enabled: bool = True) -> Found:
    """Lay a unit on a host, and read it back."""
    if name.endswith(".container"):
        source, unit = f"/etc/containers/systemd/{name}", f"{Path(name).stem}.service"
        fragment = f"/run/systemd/generator/{unit}"
        files = {source: text, fragment: f"[Unit]\nSourcePath={source}\n[Service]\nExecStart=/usr/bin/podman run x\n"}
    else:
        unit, fragment = name, f"/etc/systemd/system/{name}"
        files = {fragment: text}
    for place, content in files.items():
        path = root / place[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    if enabled and "[Install]" in text and not name.endswith(".container"):
        wants = root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir()
        (wants / name).symlink_to(f"/etc/systemd/system/{name}")
    return read_unit(Paths(root=root), UnitState(name=unit, fragment_path=fragment))


def service(command: str, **settings: str) -> str:
    more = "".join(f"{key}={value}\n" for key, value in settings.items())
    return f"[Service]\n{more}ExecStart={command}\n"


def planned(root: Path, command: str, around: Surroundings = AROUND, **settings: str) -> Plan:
    return adopt_plan.plan(host(root, "s.service", service(command, **settings)), around)


def text_of(plan: Plan, end: str) -> str:
    return next(one.text for one in plan.changes if one.path.endswith(end) and one.text is not None)


def tree(root: Path) -> Mapping[str, str]:
    """Every file and link below a folder."""
    return {
        str(one.relative_to(root)): str(one.readlink()) if one.is_symlink() else one.read_text()
        for one in sorted(root.rglob("*"))
        if one.is_symlink() or one.is_file()
    }


@pytest.mark.parametrize("name", CASES)
def test_the_diff_is_the_one_that_was_looked_at(name: str, tmp_path: Path) -> None:
    plan = adopt_plan.plan(host(tmp_path, name, (FOLDER / name).read_text()), AROUND)
    shown = diff(plan, Paths(root=tmp_path)) + "".join(f"note: {one}\n" for one in plan.remarks)
    assert shown == (FOLDER / f"{name}.diff").read_text()


@pytest.mark.parametrize("name", CASES)
def test_taking_back_leaves_the_host_as_it_was(name: str, tmp_path: Path) -> None:
    paths = Paths(root=tmp_path)
    plan = adopt_plan.plan(host(tmp_path, name, (FOLDER / name).read_text()), AROUND)
    before = tree(tmp_path)
    carry_out(plan, paths)
    assert tree(tmp_path) != before
    record = record_of(paths, plan.unit)
    assert record is not None and record.starts is bool(plan.unlink or name.endswith(".container"))
    carry_out(adopt_plan.undo(record), paths)
    assert tree(tmp_path) == before
    assert diff(adopt_plan.undo(record), paths) == ""


@pytest.mark.parametrize("name", CASES)
def test_adopting_twice_changes_nothing_and_keeps_how_it_was_started(name: str, tmp_path: Path) -> None:
    paths = Paths(root=tmp_path)
    found = host(tmp_path, name, (FOLDER / name).read_text())
    first = adopt_plan.plan(found, AROUND)
    carry_out(first, paths)
    record = record_of(paths, first.unit)
    again = adopt_plan.plan(replace(found, links=()), replace(AROUND, record=record))
    assert diff(again, paths) == ""


@pytest.mark.parametrize("name", CASES)
def test_the_service_file_is_a_valid_one(name: str, tmp_path: Path) -> None:
    plan = adopt_plan.plan(host(tmp_path, name, (FOLDER / name).read_text()), AROUND)
    document, problems = read_document(text_of(plan, ".yaml").encode(), "s.yaml")
    assert not problems
    fit = validate(ServiceModel, document)
    assert fit.problems == [] and fit.model is not None and fit.model.unit == plan.unit


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/opt/vllm serve m --tensor-parallel-size 4 --tensor-parallel-size 2", "more than once"),
        ("/usr/bin/docker start -a qwen", "whose GPUs were fixed when it was made"),
        ("/usr/bin/docker compose up", "Compose chooses the GPUs in its own file"),
        ("/usr/bin/docker-compose -f x.yml up", "Compose chooses the GPUs in its own file"),
        ("/usr/bin/docker run --gpus 2 vllm/vllm-openai -tp 2", "--gpus 2 names no cards"),
        ("/usr/bin/docker run vllm/vllm-openai -tp 2", "how its container gets GPUs is not seen"),
        ("/usr/bin/env CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 2", "sets CUDA_VISIBLE_DEVICES itself"),
        ("/usr/bin/podman run --device nvidia.com/gpu=0 vllm/vllm-openai", "single GPUs by CDI"),
        ("/bin/sh -c 'docker run --gpus all vllm/vllm-openai -tp 2'", "a shell inside its command line"),
        ("/usr/bin/python3 train.py", "what serves there is not known"),
        (":/opt/bin/vllm serve m -tp 2", "keeps variables as they are"),
        ("/opt/bin/python -m sglang.launch_server --tp 8 --nnodes 2", "it spans 2 hosts"),
        ("/usr/bin/text-generation-launcher --model-id x", "give it --num-shard N"),
        ("/opt/bin/vllm serve m -tp ${SIZE}", "the value of ${SIZE} is not seen"),
        ("/bin/true\nExecStart=/opt/bin/vllm serve m -tp 2", "it has 2 ExecStart= lines"),
    ],
)
def test_what_it_cannot_do_it_says_and_leaves_the_command_alone(command: str, says: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, command)
    assert says in " ".join(plan.remarks)
    assert "ExecStart" not in text_of(plan, "bandog.conf")
    assert "profiles" not in text_of(plan, ".yaml")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("/opt/bin/vllm serve m -tp 4", "/opt/bin/vllm serve m -tp ${TP_SIZE}"),
        ("-/opt/bin/vllm serve m -tp=4 -x 'a b'", "-/opt/bin/vllm serve m -tp=${TP_SIZE} -x 'a b'"),
        (
            "/bin/bash -lc 'source x; exec vllm serve m --tensor-parallel-size 4'",
            "/bin/bash -lc 'source x; exec vllm serve m --tensor-parallel-size ${TP_SIZE}'",
        ),
        (
            "/usr/bin/docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all vllm/vllm-openai -tp 4",
            "/usr/bin/docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=${BANDOG_GPU_UUIDS} vllm/vllm-openai "
            "-tp ${TP_SIZE}",
        ),
        (
            "/usr/bin/podman run --device nvidia.com/gpu=all vllm/vllm-openai -tp 4",
            "/usr/bin/podman run --device nvidia.com/gpu=all --env=CUDA_VISIBLE_DEVICES --env=CUDA_DEVICE_ORDER "
            "vllm/vllm-openai -tp ${TP_SIZE}",
        ),
        (
            "/usr/bin/text-generation-launcher --model-id x --num-shard 4",
            "/usr/bin/text-generation-launcher --model-id x --num-shard ${TP_SIZE}",
        ),
    ],
)
def test_only_what_must_vary_becomes_a_variable(command: str, line: str, tmp_path: Path) -> None:
    assert f"ExecStart=\nExecStart={line}\n" in text_of(planned(tmp_path, command), "bandog.conf")


def test_a_size_that_is_a_variable_already_is_used_as_it_is(tmp_path: Path) -> None:
    plan = planned(tmp_path, "/opt/bin/vllm serve m -tp $SIZE --x", Environment='"SIZE=4"')
    assert "ExecStart" not in text_of(plan, "bandog.conf")
    assert '- {count: 4, env: {SIZE: "4"}}' in text_of(plan, ".yaml")


def test_a_variable_that_the_unit_sets_for_something_else_is_left_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path, "/opt/bin/vllm serve m -tp 4", Environment="TP_SIZE=9")
    assert "-tp ${MODEL_TP_SIZE}" in text_of(plan, "bandog.conf")


def test_without_an_option_a_server_uses_one_gpu_and_may_move_to_another(tmp_path: Path) -> None:
    plan = planned(tmp_path, "/opt/bin/vllm serve m")
    assert "profiles:\n  - {count: 1}\n" in text_of(plan, ".yaml")


def test_pipeline_stages_multiply_what_a_profile_needs(tmp_path: Path) -> None:
    plan = planned(tmp_path, "/opt/bin/vllm serve m -tp 4 -pp 2")
    assert '- {count: 8, env: {TP_SIZE: "4"}}\n  - {count: 4, env: {TP_SIZE: "2"}}' in text_of(plan, ".yaml")


def test_a_drop_in_that_would_win_over_ours_makes_it_later(tmp_path: Path) -> None:
    host(tmp_path, "s.service", service("/opt/bin/vllm serve m -tp 4"))
    override = tmp_path / "etc/systemd/system/s.service.d/override.conf"
    override.parent.mkdir()
    override.write_text("[Service]\nExecStart=\nExecStart=/opt/bin/vllm serve m -tp 2\n")
    drops = ("/etc/systemd/system/s.service.d/override.conf",)
    state = UnitState(name="s.service", fragment_path="/etc/systemd/system/s.service", drop_in_paths=drops)
    plan = adopt_plan.plan(read_unit(Paths(root=tmp_path), state), AROUND)
    assert plan.changes[0].path.endswith("/zzz-bandog.conf")
    assert 'Environment="TP_SIZE=2"' in text_of(plan, "bandog.conf")


def test_a_service_that_is_described_already_is_left_as_it_is(tmp_path: Path) -> None:
    mine = Service(name="q", unit="s.service", profiles=({"count": 4, "env": {"SIZE": "4"}},), file="services.d/q.yaml")
    plan = planned(tmp_path, "/opt/bin/vllm serve m -tp 4", replace(AROUND, existing=mine))
    assert [one.path for one in plan.changes] == ["/etc/systemd/system/s.service.d/50-bandog.conf"]
    assert "-tp ${SIZE}" in text_of(plan, "bandog.conf")
    assert plan.remarks == ("services.d/q.yaml describes the service already and stays as it is",)


def test_without_the_starter_the_unit_keeps_its_own_start(tmp_path: Path) -> None:
    found = host(tmp_path, "vllm-qwen.service", (FOLDER / "vllm-qwen.service").read_text())
    plan = adopt_plan.plan(found, replace(AROUND, starts=False))
    assert plan.unlink == () and "#@ link" not in text_of(plan, "bandog.conf")
    assert "systemctl enable bandog-services.service" in plan.remarks[0]


def test_numbers_of_gpus_become_addresses_by_the_inventory(tmp_path: Path) -> None:
    now = FakeClock().now()
    cards = [
        KnownGpu(uuid=f"GPU-{n}", slot=f"0000:{bus}:00.0", first_seen=now, last_seen=now)
        for n, bus in enumerate(("ca", "17", "65"))
    ]
    plan = planned(
        tmp_path, "/opt/bin/vllm serve m -tp 2", replace(AROUND, cards=cards), Environment="CUDA_VISIBLE_DEVICES=0,1"
    )
    assert 'gpus: ["0000:17:00.0", "0000:65:00.0"]' in text_of(plan, ".yaml")


def test_a_server_that_wants_a_key_has_its_canary_as_a_hint_only(tmp_path: Path) -> None:
    plan = planned(tmp_path, "/opt/bin/vllm serve m --api-key secret")
    text = text_of(plan, ".yaml")
    assert "\n# canary: " in text and "secret" not in text


@pytest.mark.parametrize(
    ("command", "settings", "folder"),
    [
        ("/opt/bin/vllm serve /models/q", {}, "models/q"),
        ("/opt/bin/vllm serve --model /models/q", {}, "models/q"),
        ("/opt/bin/vllm serve q", {"WorkingDirectory": "/srv"}, "srv/q"),
        ("/opt/bin/vllm serve org/q", {"Environment": "HF_HOME=/hf"}, "hf/hub/models--org--q/snapshots/abc"),
        ("/usr/bin/docker run -v /srv/m:/models vllm/vllm-openai --model /models/q", {}, "srv/m/q"),
        (
            "/usr/bin/docker run -v /hf:/root/.cache/huggingface vllm/vllm-openai --model org/q",
            {},
            "hf/hub/models--org--q/snapshots/abc",
        ),
    ],
)
def test_the_models_files_are_found(command: str, settings: dict[str, str], folder: str, tmp_path: Path) -> None:
    found = host(tmp_path, "s.service", service(command, **settings))
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "config.json").write_text(json.dumps(MODEL))
    if "snapshots" in folder:
        refs = tmp_path / folder / "../../refs"
        refs.mkdir()
        (refs / "main").write_text("abc")
    read = adopt_plan.command_of(found)
    assert read is not None
    place = model_folder(Paths(root=tmp_path), found, read)
    assert place == tmp_path / folder
    assert read_model(place).heads == 64
