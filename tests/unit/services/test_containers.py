"""Which container a client's command line starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.services.containers import arguments, docker_name, named
from bandog.testing import FakeHost

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/docker run --rm --gpus all --name vllm -p 8000:8000 vllm/vllm-openai", "vllm"),
        ("docker run --name=vllm image", "vllm"),
        ("docker --context default run -it --name vllm image --name other", "vllm"),
        ("docker container run --name vllm image", "vllm"),
        ("/usr/bin/docker start -a vllm", "vllm"),
        ("podman start --attach vllm", "vllm"),
        ("nerdctl run --name vllm image", "vllm"),
        (f"/usr/bin/conmon --api-version 1 -c {ID} -u {ID} -n vllm", ID),
        ("docker run image", None),
        ("docker run --name", None),
        ("docker compose up", None),
        ("docker", None),
    ],
)
def test_the_container_that_a_command_line_starts(line: str, name: str | None) -> None:
    assert named(line.split()) == name


def test_dockers_own_file_tells_the_name_of_an_id(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write(f"/var/lib/docker/containers/{ID}/config.v2.json", '{"Name": "/vllm"}')
    assert docker_name(host.paths, ID) == "vllm"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"Name": 3}', '{"Name": ""}', "\udcff"])
def test_a_file_of_another_shape_tells_no_name(tmp_path: Path, text: str) -> None:
    host = FakeHost(tmp_path)
    host.write(f"/var/lib/docker/containers/{ID}/config.v2.json", text)
    assert docker_name(host.paths, ID) is None
    assert docker_name(host.paths, "../../etc") is None


def test_a_command_line_is_split_at_its_zero_bytes(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write("/proc/5/cmdline", b"docker\0run\0--name\0a b\0")
    assert arguments(host.paths, 5) == ("docker", "run", "--name", "a b")
    assert arguments(host.paths, 6) == ()


@given(st.lists(st.text(max_size=10), max_size=8))
def test_any_command_line_has_an_answer(argv: list[str]) -> None:
    named(argv)
    named(["docker", *argv])
