"""The whole configuration: files become values, or every problem at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bandog.config import Loaded, PluginCatalogue, load
from bandog.config.models import MainModel
from bandog.domain.model import Severity
from bandog.domain.policy import FactTest, Rate
from bandog.host.paths import Paths

Write = Callable[..., Loaded]
MAIN = """
mode: [restart]
notify: {oncall: {urls: "file:/etc/bandog/url"}}
windows: {default: {days: [sat, sun], from: "22:00", to: "05:00", tz: Europe/Berlin}}
budgets: {restart: 3 per 1h, host: 10 per 24h}
fleet_lock: {url: "http://lock", id: me}
plugins: {hung-task-scan: off}
kubernetes: true
metrics: {textfile: /run/x.prom}
heartbeat: {url: "file:/etc/bandog/ping", every: 1m}
evidence: {max_total: 2GiB, keep: 7d}
log_level: debug
"""
POLICY = """
policy: xid-contained-ecc
description: A contained ECC error killed a process; the GPU itself goes on.
match:
  kind: nvidia.xid
  facts: {xid: [94], process: {glob: 'vllm*'}, pid: {min: 2}, rst: false}
  count: 2 within 10m
severity: error
quiet: 24h
notify: oncall
inhibits: [task.hung]
mode: observe
steps:
  - do: notify
    with: {to: oncall, text: "$xid at $subject costs 5$$"}
  - {do: restart, after: 10s, limit: 1 per 24h}
"""
SERVICE = """
service: qwen
unit: vllm-qwen.service
gpus: [00000000:E5:00.0]
start: {order: 1, settle: 20s}
ready: {http: "http://127.0.0.1:8000/health"}
canary: {openai: "http://127.0.0.1:8000"}
profiles: [{count: 4, env: {TP_SIZE: 4}}]
"""


def errors(loaded: Loaded) -> list[str]:
    return [str(one) for one in loaded.problems]


def test_nothing_at_all_is_a_fine_configuration_that_observes(configuration: Write) -> None:
    loaded = configuration()
    assert errors(loaded) == []
    assert loaded.config is not None and loaded.config.mode == "observe"


def test_a_main_file_becomes_values(configuration: Write) -> None:
    config = configuration(files={"bandog.yaml": MAIN}).config
    assert config is not None
    assert config.mode == ("restart",)
    assert config.notify["oncall"].urls == ("file:/etc/bandog/url",)
    assert config.budgets["restart"] == Rate(count=3, per=timedelta(hours=1))
    assert config.fleet_lock is not None and config.fleet_lock.id == "me"
    assert config.plugins == {
        "hung-task-scan": "off",
        "evidence": {"max_total": 2 << 30, "keep": timedelta(days=7)},
    }
    assert config.kubernetes is True
    assert config.metrics_textfile == Path("/run/x.prom")
    assert config.heartbeat is not None and config.heartbeat.every == timedelta(minutes=1)
    assert config.log_level == "debug"
    assert config.windows["default"].is_open(datetime(2026, 8, 1, 21, 30, tzinfo=UTC))  # Saturday 23:30 there


def test_a_policy_becomes_values(configuration: Write) -> None:
    loaded = configuration(files={"bandog.yaml": MAIN, "policies.d/10.yaml": POLICY})
    assert errors(loaded) == []
    assert loaded.config is not None
    (policy,) = loaded.config.policies
    assert policy.match.kinds == ("nvidia.xid",)
    assert dict(policy.match.facts) == {
        "xid": FactTest(any_of=(94,)),
        "process": FactTest(glob="vllm*"),
        "pid": FactTest(minimum=2),
        "rst": FactTest(any_of=(False,)),
    }
    assert policy.match.count == Rate(count=2, per=timedelta(minutes=10))
    assert (policy.severity, policy.quiet, policy.resolve) == (Severity.ERROR, timedelta(hours=24), "proved")
    assert (policy.notify, policy.inhibits, policy.mode) == (("oncall",), ("task.hung",), "observe")
    assert [step.do for step in policy.steps] == ["notify", "restart"]
    assert policy.steps[1].after == timedelta(seconds=10)
    assert policy.steps[1].limit == Rate(count=1, per=timedelta(hours=24))
    assert (policy.file, policy.line, policy.layer) == ("policies.d/10.yaml", 2, "site")


def test_a_service_becomes_values(configuration: Write) -> None:
    config = configuration(files={"services.d/qwen.yaml": SERVICE}).config
    assert config is not None
    (service,) = config.services
    assert (service.name, service.unit, service.kind) == ("qwen", "vllm-qwen.service", "serving")
    assert service.gpus == ("0000:e5:00.0",)
    assert (service.start.order, service.start.settle) == (1, timedelta(seconds=20))
    assert service.ready.http == "http://127.0.0.1:8000/health" and not service.ready.unit
    assert dict(service.canary) == {"openai": "http://127.0.0.1:8000", "model": "auto"}
    assert dict(service.profiles[0]) == {"count": 4, "env": {"TP_SIZE": "4"}}


def test_a_service_without_ready_is_ready_when_its_unit_is_active(configuration: Write) -> None:
    config = configuration(files={"services.d/s.yaml": "service: s\nunit: s.service\n"}).config
    assert config is not None and config.services[0].ready.unit and config.services[0].gpus == ()


def test_conf_d_lies_over_the_main_file_by_name(configuration: Write) -> None:
    files = {
        "bandog.yaml": "mode: observe\nlog_level: debug\n",
        "conf.d/20.yaml": "mode: enforce\n",
        "conf.d/10.yaml": "mode: [restart]\n",
    }
    config = configuration(files=files).config
    assert config is not None and (config.mode, config.log_level) == ("enforce", "debug")


def test_an_empty_file_of_its_name_silences_a_shipped_policy(configuration: Write) -> None:
    shipped = {"10.yaml": "policy: a\nmatch: {kind: nvidia.xid}\n", "20.yaml": "policy: b\nmatch: {kind: task.hung}\n"}
    config = configuration(shipped, files={"policies.d/10.yaml": "# not here\n"}).config
    assert config is not None and [one.name for one in config.policies] == ["b"]


def test_every_problem_of_every_file_is_reported_at_once(configuration: Write) -> None:
    files = {
        "bandog.yaml": "mode: enforc\nbudgets: {restrat: 1 per 1h, host: many}\n",
        "policies.d/10.yaml": "policy: a\nmatch: {kind: nvidia.xids}\nquiet: x\nsteps: [{do: restrat}, {after: x}]\n",
        "policies.d/20.yaml": "policy: &b c\n",
        "services.d/s.yaml": "service: s\nunit: s\nready: {}\n",
    }
    loaded = configuration(files=files)
    assert loaded.config is None
    assert [(one.file, one.path, one.code) for one in loaded.problems] == [
        ("bandog.yaml", "mode", "mode"),
        ("bandog.yaml", "budgets.restrat", "unknown-budget"),
        ("bandog.yaml", "budgets.host", "rate"),
        ("policies.d/10.yaml", "match.kind", "unknown-kind"),
        ("policies.d/10.yaml", "quiet", "duration"),
        ("policies.d/10.yaml", "steps[1]", "missing-key"),
        ("policies.d/10.yaml", "steps[1].after", "duration"),
        ("policies.d/20.yaml", "", "anchor"),
        ("services.d/s.yaml", "unit", "unit"),
    ]


def test_the_style_guides_example_is_reported_to_the_letter(configuration: Write) -> None:
    text = "policy: xid\nmatch: {kind: nvidia.xid}\n\n\n\n\n\n\n\nsteps:\n- do: notify\n- do: restrat\n"
    (problem,) = configuration(files={"policies.d/10-xid.yaml": text}).problems
    assert str(problem) == (
        'policies.d/10-xid.yaml:12:7: steps[1].do: unknown action "restrat"; did you mean "restart"?'
    )


def test_what_is_right_can_be_salvaged_and_only_observes(configuration: Write) -> None:
    files = {
        "bandog.yaml": MAIN.replace("mode: [restart]", "mode: enforce") + "unknown: 1\n",
        "policies.d/10.yaml": POLICY,
        "policies.d/20.yaml": POLICY.replace("do: restart", "do: restrat"),
        "services.d/a.yaml": SERVICE,
        "services.d/b.yaml": "service: b\n",
    }
    loaded = configuration(files=files)
    assert loaded.config is None and loaded.salvaged is not None
    assert loaded.salvaged.mode == "observe"
    assert "oncall" in loaded.salvaged.notify
    assert [one.file for one in loaded.salvaged.policies] == ["policies.d/10.yaml"]
    assert [one.name for one in loaded.salvaged.services] == ["qwen"]


def test_a_broken_main_file_leaves_people_told_where_that_part_is_right(configuration: Write) -> None:
    salvaged = configuration(files={"bandog.yaml": MAIN.replace("UTC", "x").replace("22:00", "late")}).salvaged
    assert salvaged is not None
    assert salvaged.notify["oncall"].urls and not salvaged.windows


def test_warnings_do_not_fail(configuration: Write) -> None:
    loaded = configuration(files={"bandog.yaml": 'notify: {a: {urls: "credential:gone"}}\n'})
    assert [one.is_warning for one in loaded.problems] == [True]
    assert loaded.config is not None and loaded.salvaged is None


def test_secrets_do_not_show_in_what_is_printed_of_a_configuration(configuration: Write) -> None:
    text = 'notify: {a: {urls: "json://user:hunter2@host"}}\nheartbeat: {url: "https://ping/hunter2"}\n'
    assert "hunter2" not in repr(configuration(files={"bandog.yaml": text}))


def test_a_directory_that_is_none_is_a_problem_and_no_crash(tmp_path: Path, catalogue: PluginCatalogue) -> None:
    (tmp_path / "policies.d").write_text("")
    loaded = load(
        Paths(root=tmp_path), plugins=catalogue, config_dir=tmp_path, policies_dir=tmp_path / "none", environ={}
    )
    assert [one.code for one in loaded.problems] == ["unreadable"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.sampled_from(["bandog.yaml", "policies.d/x.yaml", "services.d/x.yaml", "conf.d/x.yaml"]),
    st.sampled_from([MAIN, POLICY, SERVICE]),
    st.data(),
)
def test_a_damaged_file_is_reported_or_read_and_never_raises(
    tmp_path: Path, catalogue: PluginCatalogue, name: str, text: str, data: st.DataObject
) -> None:
    good = text.encode()
    at = data.draw(st.integers(0, len(good)))
    damage = data.draw(st.binary(max_size=4) | st.sampled_from([b"[", b"{", b": ", b"- ", b"null", b"1", b"\n", b"  "]))
    upto = data.draw(st.integers(at, min(len(good), at + 20)))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(good[:at] + damage + good[upto:])
    try:
        loaded = load(
            Paths(root=tmp_path), plugins=catalogue, config_dir=tmp_path, policies_dir=tmp_path / "none", environ={}
        )
        assert (loaded.config is None) == bool(loaded.errors)
        assert all("\n" not in str(one) for one in loaded.problems)
    finally:
        (tmp_path / name).unlink()


def test_the_shipped_main_file_is_right_and_says_nothing_but_the_defaults(
    tmp_path: Path, catalogue: PluginCatalogue
) -> None:
    shipped = (Path(__file__).parents[3] / "packaging/bandog.yaml").read_text()
    (tmp_path / "bandog.yaml").write_text(shipped)
    loaded = load(
        Paths(root=tmp_path), plugins=catalogue, config_dir=tmp_path, policies_dir=tmp_path / "none", environ={}
    )
    assert errors(loaded) == []
    none = load(
        Paths(root=tmp_path), plugins=catalogue, config_dir=tmp_path / "x", policies_dir=tmp_path / "none", environ={}
    )
    assert loaded.config == none.config


def test_each_example_in_the_shipped_main_file_is_right_once_uncommented(
    tmp_path: Path, catalogue: PluginCatalogue
) -> None:
    shipped = (Path(__file__).parents[3] / "packaging/bandog.yaml").read_text()
    examples = re.findall(r"^# (\w+: ?[^ \n].*|\w+:\n(?:#   .*\n)+)", shipped, re.MULTILINE)
    text = "\n".join(one.replace("\n# ", "\n") for one in examples if one.split(":")[0] in MainModel.model_fields)
    (tmp_path / "bandog.yaml").write_text(text)
    loaded = load(
        Paths(root=tmp_path), plugins=catalogue, config_dir=tmp_path, policies_dir=tmp_path / "none", environ={}
    )
    assert [str(one) for one in loaded.errors] == []
    assert loaded.config is not None
    written = {"mode", *(one.split(":")[0] for one in examples)}
    assert written & set(MainModel.model_fields) == set(MainModel.model_fields)
    assert set(loaded.config.notify) == {"oncall", "team"}


@pytest.mark.parametrize(
    "text",
    [
        'notify: {oncall: "json://user:hunter2@host/s3cr3t"}\n',
        'notify: "https://user:hunter2@chat.example/services/s3cr3t"\n',
        'notify: {"json://user:hunter2@host/s3cr3t": {urls: x}}\n',
        "mode: slack://hunter2/s3cr3t\n",
        "json://user:hunter2@host/s3cr3t\n",
    ],
)
def test_an_address_in_the_wrong_place_is_not_told_with_its_secrets(
    tmp_path: Path, catalogue: PluginCatalogue, text: str
) -> None:
    """The first problem of a reload goes to the record and to people."""
    (tmp_path / "bandog.yaml").write_text(text)
    loaded = load(Paths(), plugins=catalogue, config_dir=tmp_path, policies_dir=tmp_path, environ={})
    assert loaded.errors
    for problem in loaded.problems:
        assert not re.search("hunter2|s3cr3t", str(problem) + str(problem.to_dict()))
