"""Promises of the house that a linter does not know: who imports whom, and what must not occur."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import bandog
from bandog import hookspecs

TOP = Path(__file__).parents[2]
AGENT = TOP / "agent" / "bandog"
PLUGINS = TOP / "plugins" / "bandog_plugins"
SOURCES = sorted([*AGENT.rglob("*.py"), *PLUGINS.rglob("*.py")])

# room → rooms that it may import besides itself; `plugin` is the base classes' file
MAY = {
    "domain": set[str](),
    "host": {"domain"},
    "services": {"domain", "host"},
    "config": {"domain", "services", "host", "plugin"},
    "sources": {"domain", "host", "plugin"},
    "store": {"domain", "host"},
    "runtime": {"domain", "host", "store", "services", "config", "plugin", "sources"},
}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every module that a file imports, made absolute, with its line."""
    package = ("bandog", *path.relative_to(AGENT).parent.parts) if path.is_relative_to(AGENT) else ()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            yield name, node.lineno
            if not node.module:
                yield from ((f"{name}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("room", sorted(MAY))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    wrong = []
    for path in (AGENT / room).rglob("*.py"):
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] == "bandog" and len(parts) > 1 and parts[1] not in {room, *MAY[room]}:
                wrong.append(f"{path.relative_to(TOP)}:{line}: imports {name}")
            if parts[0] == "bandog_plugins":
                wrong.append(f"{path.relative_to(TOP)}:{line}: the core imports a plugin")
    assert wrong == []


def test_plugins_import_nothing_of_the_core_but_its_public_names() -> None:
    wrong = [
        f"{path.relative_to(TOP)}:{line}: imports {name}"
        for path in PLUGINS.rglob("*.py")
        for name, line in imports(path)
        if name.startswith("bandog.")
    ]
    assert wrong == []


def test_only_the_child_program_imports_pynvml() -> None:
    found = {path for path in SOURCES for name, _ in imports(path) if name.split(".")[0] == "pynvml"}
    assert found == {PLUGINS / "gpu" / "child.py"}


def test_only_the_host_seam_reads_a_clock() -> None:
    clocks = {"time.time", "time.monotonic", "time.clock_gettime", "datetime.now", "datetime.utcnow"}
    wrong = []
    for path in SOURCES:
        if path.is_relative_to(AGENT / "host"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in clocks:
                wrong.append(f"{path.relative_to(TOP)}:{node.lineno}: {ast.unparse(node.func)}")
    assert wrong == []


def test_no_shell_is_ever_called() -> None:
    wrong = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                wrong.append(f"{path.relative_to(TOP)}:{node.value.lineno}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"os.system", "os.popen"}:
                wrong.append(f"{path.relative_to(TOP)}:{node.lineno}")
    assert wrong == []


def test_every_module_says_why_it_exists() -> None:
    assert [str(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_everything_public_has_a_docstring() -> None:
    wrong = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for node in [*tree.body, *(item for one in tree.body if isinstance(one, ast.ClassDef) for item in one.body)]:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            overload = any("overload" in ast.unparse(one) for one in node.decorator_list)
            private = (
                node.name.startswith("_")
                or overload
                or any(
                    isinstance(one, ast.ClassDef) and one.name.startswith("_") and node in one.body for one in tree.body
                )
            )
            if not private and not ast.get_docstring(node):
                wrong.append(f"{path.relative_to(TOP)}:{node.lineno}: {node.name}")
    assert wrong == []


def test_every_hook_is_documented_and_called_somewhere() -> None:
    source = "\n".join(path.read_text() for path in AGENT.rglob("*.py") if path.name != "hookspecs.py")
    names = [name for name, item in vars(hookspecs).items() if hasattr(item, "bandog_spec")]
    assert len(names) == 4
    for name in names:
        assert inspect.getdoc(getattr(hookspecs, name)), name
        assert f"hook.{name}" in source or f'"{name}"' in source, f"{name} is never called"


def test_the_public_names_exist_and_are_sorted() -> None:
    assert list(bandog.__all__) == sorted(bandog.__all__, key=lambda name: (name[0].islower(), name))
    assert [name for name in bandog.__all__ if not hasattr(bandog, name)] == []


def test_nothing_is_left_unfinished() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X:", "NotImplemented" + "Error")
    wrong = [f"{path}: {mark}" for path in SOURCES for mark in marks if mark in path.read_text()]
    assert wrong == []


def test_every_test_module_has_a_name_of_its_own() -> None:
    """pytest imports them by name: two of one name end the whole run before its first test."""
    names = Counter(path.name for path in TOP.glob("tests/**/test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
