"""`bandog check`: what it reads, prints and answers with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bandog.cli.check import check

POLICY = "policy: p\nmatch: {kind: nvidia.xid}\nnotify: [oncal]\n"
MAIN = 'notify: {oncall: {urls: "file:/etc/bandog/oncall"}}\n'


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(check, [str(one) for one in arguments])


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "policies.d").mkdir()
    (tmp_path / "bandog.yaml").write_text(MAIN)
    return tmp_path


def test_a_good_configuration_is_fine_and_counted(etc: Path) -> None:
    (etc / "policies.d/10.yaml").write_text(POLICY.replace("oncal", "oncall"))
    empty = etc / "none"
    empty.mkdir()
    result = run("--config", etc, "--policies", empty)
    assert (result.stdout, result.exit_code) == ("fine: 1 policies, 0 services\n", 0)


def test_a_mistake_is_bad_configuration_by_its_exit_code(etc: Path) -> None:
    (etc / "policies.d/10.yaml").write_text(POLICY)
    result = run("--config", etc)
    assert result.exit_code == 78
    assert result.stdout.splitlines() == [
        'policies.d/10.yaml:3:10: notify[0]: no notify target is called "oncal"; did you mean "oncall"?'
    ]


def test_a_program_can_read_it(etc: Path) -> None:
    (etc / "policies.d/10.yaml").write_text(POLICY)
    answer = json.loads(run("--json", "--config", etc).stdout)
    assert answer["ok"] is False
    assert answer["problems"] == [
        {
            "file": "policies.d/10.yaml",
            "line": 3,
            "column": 10,
            "path": "notify[0]",
            "severity": "error",
            "code": "unknown-target",
            "message": 'no notify target is called "oncal"; did you mean "oncall"?',
        }
    ]


def test_a_policy_alone_is_judged_by_the_configuration_that_it_lies_in(etc: Path, tmp_path: Path) -> None:
    inside, outside = etc / "policies.d/10.yaml", tmp_path / "draft.yaml"
    inside.write_text(POLICY)
    outside.write_text(POLICY)
    assert run(inside).exit_code == 78
    assert run(outside).exit_code == 0
    assert run("--config", etc, outside).exit_code == 78


def test_several_files_and_directories_are_checked_at_once(etc: Path) -> None:
    (etc / "a.yaml").write_text("service: a\n")
    (etc / "b.yaml").write_text("policy: b\n")
    lines = run(etc, etc / "a.yaml", etc / "b.yaml").stdout.splitlines()
    assert [line.split("key ")[1].split(" ")[0] for line in lines] == ['"unit"', '"match"']


def test_a_comment_only_policy_is_fine(etc: Path) -> None:
    (etc / "policies.d/10.yaml").write_text("# silenced\n")
    assert run(etc / "policies.d/10.yaml").exit_code == 0


def test_a_file_that_is_not_there_is_a_usage_error() -> None:
    assert run("/nowhere/x.yaml").exit_code == 2


def test_a_policy_in_the_folder_of_policies_is_told_apart_without_its_name(etc: Path) -> None:
    (etc / "policies.d/10.yaml").write_text("notify: [oncall]\nmode: observe\n")
    lines = run(etc / "policies.d/10.yaml").stdout.splitlines()
    assert [line.split("key ")[1].split(" ")[0] for line in lines] == ['"policy"', '"match"']


def test_a_directory_of_loose_files_is_checked_file_by_file(etc: Path) -> None:
    (etc / "policies.d/10.yaml").write_text(POLICY)
    (etc / "policies.d/20.yaml").write_text("policy: b\n")
    result = run(etc / "policies.d")
    assert result.exit_code == 78
    assert [line.split("policies.d/")[1].split(":")[0] for line in result.stdout.splitlines()] == ["10.yaml", "20.yaml"]
