"""One spelling for each subject, whoever spells it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandog.domain import subjects


@pytest.mark.parametrize("spelling", ["0000:e5:00", "0000:E5:00.0", "00000000:E5:00.0", "0:e5:00.0", " 0000:e5:00.0\n"])
def test_a_pci_address_has_one_spelling(spelling: str) -> None:
    assert subjects.gpu(spelling) == "gpu:0000:e5:00.0"


def test_a_long_domain_and_a_function_are_kept() -> None:
    assert subjects.pci_address("10009:01:00.3") == "10009:01:00.3"


@given(st.text(max_size=20))
def test_what_is_no_address_is_refused_and_what_is_one_stays(text: str) -> None:
    try:
        address = subjects.pci_address(text)
    except ValueError:
        return
    assert subjects.pci_address(address) == address


def test_a_subject_is_a_type_and_an_id() -> None:
    assert subjects.type_of(subjects.task("kworker/0:1")) == "task"
    assert subjects.id_of(subjects.task("kworker/0:1")) == "kworker/0:1"
    assert (subjects.type_of(subjects.HOST), subjects.id_of(subjects.HOST)) == ("host", "")
    assert subjects.nvswitch("0:05:00") == "nvswitch:0000:05:00.0"
    assert subjects.pci("0:05:00.1") == "pci:0000:05:00.1"
    assert [subjects.dimm("A1"), subjects.cpu(3)] == ["dimm:A1", "cpu:3"]
    assert [subjects.mount("/x"), subjects.disk("sda")] == ["mount:/x", "disk:sda"]
    assert [subjects.service("qwen"), subjects.plugin("xid")] == ["service:qwen", "plugin:xid"]
