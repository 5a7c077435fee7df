"""From the path of a control group to unit and container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.services.placement import placement

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("group", "unit", "container"),
    [
        ("/system.slice/vllm.service", "vllm.service", None),
        ("/system.slice/vllm.service/worker/0", "vllm.service", None),
        ("/system.slice/system-vllm.slice/vllm@0.service", "vllm@0.service", None),
        ("/ai.slice/ai-serving.slice/a\\x2db.service", "a\\x2db.service", None),
        ("/system.slice/_memory.service", "memory.service", None),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service", "vllm.service", None),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", None),
        (f"/system.slice/docker-{ID}.scope", f"docker-{ID}.scope", ID),
        (f"/docker/{ID}", None, ID),
        (f"/machine.slice/libpod-{ID}.scope/container", f"libpod-{ID}.scope", ID),
        (f"/system.slice/vllm.service/libpod-payload-{ID}", "vllm.service", ID),
        (f"/kubepods.slice/kubepods-podx.slice/cri-containerd-{ID}.scope", f"cri-containerd-{ID}.scope", ID),
        (f"/kubepods.slice/kubepods-podx.slice/crio-{ID}.scope", f"crio-{ID}.scope", ID),
        (f"/system.slice/containerd.service/kubepods-podx.slice:cri-containerd:{ID}", "containerd.service", ID),
        (f"/kubepods/burstable/podx/{ID}", None, ID),
        ("/init.scope", "init.scope", None),
        ("/", None, None),
        ("", None, None),
    ],
)
def test_unit_and_container_of_a_group(group: str, unit: str | None, container: str | None) -> None:
    found = placement(group)
    assert (found.unit, found.container) == (unit, container)


def test_units_go_from_the_innermost_out() -> None:
    group = "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service"
    assert placement(group).units == ("vllm.service", "user@1000.service")


@given(st.text())
def test_any_path_has_an_answer(group: str) -> None:
    placement(group)
