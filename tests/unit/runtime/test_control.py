"""The control socket answers root, and arbitrary bytes get an error line and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandog import Fact
from bandog.cli.client import NotRunning, call
from bandog.host.paths import Paths
from bandog.runtime.control import Control, OperatorError
from bandog.runtime.operations import Operations


def operations() -> dict[str, Any]:
    async def later(word: str) -> str:
        return word.upper()

    def refuse() -> None:
        raise OperatorError("the breaker has not tripped")

    def crash() -> None:
        raise ValueError("odd")

    def drill(kinds: Sequence[str], subject: str | None, facts: Mapping[str, Fact], seconds: float, n: int) -> str:
        return "fine"

    return {"echo": lambda word: word, "later": later, "refuse": refuse, "crash": crash, "drill": drill}


async def ask(path: Path, raw: bytes) -> dict[str, Any] | None:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(raw)
    writer.write_eof()
    line = await reader.readline()
    writer.close()
    return json.loads(line) if line else None


def serve(path: Path, raw: bytes) -> dict[str, Any] | None:
    async def go() -> dict[str, Any] | None:
        control = Control(path, operations())
        await control.start()
        try:
            return await ask(path, raw)
        finally:
            await control.stop()

    return asyncio.run(go())


def test_an_operation_is_called_with_its_arguments(tmp_path: Path) -> None:
    assert serve(tmp_path / "c", b'{"do": "echo", "with": {"word": "hi"}}\n') == {"ok": True, "answer": "hi"}


def test_a_second_daemon_does_not_take_the_socket_from_a_living_one(tmp_path: Path) -> None:
    path = tmp_path / "c"

    async def go() -> None:
        first, second = Control(path, operations()), Control(path, operations())
        await first.start()
        with pytest.raises(OSError, match="another bandog serves it"):
            await second.start()
        await second.stop()
        assert await ask(path, b'{"do": "later", "with": {"word": "hi"}}\n') == {"ok": True, "answer": "HI"}
        await first.stop()
        assert not path.exists()

    asyncio.run(go())


def test_an_async_operation_is_awaited(tmp_path: Path) -> None:
    assert serve(tmp_path / "c", b'{"do": "later", "with": {"word": "hi"}}\n') == {"ok": True, "answer": "HI"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"do": "melt"}\n', "unknown operation 'melt'"),
        (b'{"do": "echo", "with": {"wrd": 1}}\n', "not a request"),
        (b"\xff\xfe\n", "not a request"),
        (b'["do"]\n', "not a request"),
        (b'{"do": "refuse"}\n', "the breaker has not tripped"),
        (b'{"do": "crash"}\n', "ValueError: odd"),
        (b'{"do": ["echo"]}\n', "not a request"),
    ],
)
def test_a_bad_request_gets_one_clear_error(tmp_path: Path, raw: bytes, text: str) -> None:
    answer = serve(tmp_path / "c", raw)
    assert answer is not None
    assert answer["ok"] is False
    assert text in answer["error"]


@settings(max_examples=40, deadline=None)
@given(raw=st.binary(max_size=300))
def test_arbitrary_bytes_never_succeed_and_never_end_the_server(tmp_path_factory: Any, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("s") / "c"

    async def go() -> None:
        control = Control(path, operations())
        await control.start()
        answer = await ask(path, raw)
        assert answer is None or answer["ok"] is False
        assert await ask(path, b'{"do": "echo", "with": {"word": 1}}\n') == {"ok": True, "answer": 1}
        await control.stop()

    asyncio.run(go())


def test_a_line_without_end_is_cut_off(tmp_path: Path) -> None:
    assert serve(tmp_path / "c", b"x" * 200_000) is None


def test_only_root_may_open_the_socket(tmp_path: Path) -> None:
    async def mode() -> int:
        control = Control(tmp_path / "c", {})
        await control.start()
        try:
            return stat.S_IMODE((tmp_path / "c").stat().st_mode)
        finally:
            await control.stop()

    assert asyncio.run(mode()) == 0o600


def test_a_client_without_a_daemon_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="not running"):
        call(Paths(run_dir=tmp_path), "status")


FINE = {"kinds": ["nvidia.xid"], "subject": None, "facts": {"xid": 94, "ok": True, "r": 0.5}, "seconds": 60, "n": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kinds", "abc"),
        ("kinds", [["a"]]),
        ("subject", 5),
        ("facts", []),
        ("facts", {"xid": [94]}),
        ("facts", {"a": {"b": 1}}),
        ("facts", {"a": None}),
        ("seconds", "60"),
        ("seconds", float("nan")),
        ("n", 1.5),
        ("n", True),
    ],
    ids=str,
)
def test_an_argument_of_another_type_never_reaches_the_operation(tmp_path: Path, name: str, value: Any) -> None:
    """It could be written down, and a database with a row that cannot be read back is set aside."""

    def answer(arguments: dict[str, Any]) -> Any:
        return serve(tmp_path / "c", json.dumps({"do": "drill", "with": arguments}).encode() + b"\n")

    assert answer(FINE) == {"ok": True, "answer": "fine"}
    told = answer({**FINE, name: value})
    assert not told["ok"] and told["error"].startswith(f"not a request: {name} cannot be ")


def test_every_operation_says_of_what_type_its_arguments_are() -> None:
    for name in ("hold", "release", "ack", "rearm", "drill", "notify_test"):
        hints = get_type_hints(getattr(Operations, name))
        assert set(inspect.signature(getattr(Operations, name)).parameters) - {"self"} <= set(hints)
