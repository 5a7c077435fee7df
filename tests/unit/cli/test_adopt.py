"""`bandog adopt` on a host of files: PID 1 answers over its private socket, and systemctl is never called there."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from dbus_fast import Message, Variant
from host.fake_systemd1 import FakeManager

from bandog import overrides
from bandog.cli import main
from bandog.services.registry import Service
from bandog.testing import FakeClock

UNIT = "vllm-qwen.service"
TEXT = """[Service]
ExecStart=/opt/vllm/bin/vllm serve /models/qwen --tensor-parallel-size 4
[Install]
WantedBy=multi-user.target
"""
CONFIG = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "num_hidden_layers": 32}
LINK = f"etc/systemd/system/multi-user.target.wants/{UNIT}"
DROP_IN = f"etc/systemd/system/{UNIT}.d/50-bandog.conf"


class Manager(FakeManager):
    """Counts how often it was told to read its files again."""

    reloads = 0

    def _on_Reload(self, message: Message) -> Message:
        self.reloads += 1
        return Message.new_method_return(message)


class Host:
    """A root directory, and a PID 1 that serves below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unit()
        self.lay("models/qwen/config.json", json.dumps(CONFIG))
        self.lay("etc/bandog/bandog.yaml", "mode: observe\n")
        self.lay(LINK, "")
        (root / LINK).unlink()
        (root / LINK).symlink_to(f"/etc/systemd/system/{UNIT}")
        (root / "run/systemd").mkdir(parents=True)
        (root / "proc").symlink_to("/proc")
        self.manager = Manager(root / "run/systemd")
        self.manager.units[UNIT] = _loaded(UNIT)
        self.manager.units["bandog-services.service"] = _loaded("bandog-services.service")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(5)

    async def _open(self) -> None:
        self.manager.listen()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.manager.close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def lay(self, place: str, text: str) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def unit(self, text: str = TEXT) -> None:
        self.lay(f"etc/systemd/system/{UNIT}", text)

    def adopt(self, *words: str, answer: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(main, ["adopt", *words], env={"BANDOG_ROOT": str(self.root)}, input=answer)
        return done.exit_code, done.output

    def files(self) -> dict[str, str]:
        """Every file and link in /etc."""
        return {
            str(one.relative_to(self.root)): str(one.readlink()) if one.is_symlink() else one.read_text()
            for one in sorted((self.root / "etc").rglob("*"))
            if one.is_symlink() or one.is_file()
        }


def _loaded(name: str) -> dict[str, dict[str, Variant]]:
    return {
        "org.freedesktop.systemd1.Unit": {
            "Id": Variant("s", name),
            "LoadState": Variant("s", "loaded"),
            "FragmentPath": Variant("s", f"/etc/systemd/system/{name}"),
            "UnitFileState": Variant("s", "enabled"),
        },
        "org.freedesktop.systemd1.Service": {"Type": Variant("s", "simple")},
    }


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path)
    yield one
    one.close()


def test_it_shows_and_asks_and_writes_nothing_without_a_yes(host: Host) -> None:
    before = host.files()
    code, text = host.adopt(UNIT, answer="n\n")
    assert code == 1 and "+ExecStart=/opt/vllm/bin/vllm serve /models/qwen --tensor-parallel-size ${TP_SIZE}" in text
    assert "Write this?" in text
    assert host.adopt("vllm-qwen", "--dry-run")[0] == 0
    assert host.files() == before


def test_adopting_and_taking_back_is_a_circle(host: Host) -> None:
    before = host.files()
    answer = json.loads(host.adopt(UNIT, "--yes", "--json")[1])
    assert answer["written"] and answer["service"] == "vllm-qwen"
    assert answer["reloaded"] and host.manager.reloads == 1
    assert not (host.root / LINK).is_symlink()
    assert "EnvironmentFile=-/run/bandog/env/vllm-qwen.service.env" in (host.root / DROP_IN).read_text()
    service = (host.root / "etc/bandog/services.d/vllm-qwen.yaml").read_text()
    assert '- {count: 4, env: {TP_SIZE: "4"}}' in service and '# - {count: 2, env: {TP_SIZE: "2"}}' in service
    assert "nothing to change" in host.adopt(UNIT, "--dry-run")[1]
    place = overrides.path_of(host.root / "run/bandog", UNIT)
    place.parent.mkdir(parents=True)
    overrides.put(host.root / "run/bandog", Service(name="x", unit=UNIT), None, without=[], at=FakeClock().now())
    assert json.loads(host.adopt(UNIT, "--undo", "--yes", "--json")[1])["written"]
    assert host.files() == before and not place.exists()
    code, text = host.adopt(UNIT, "--undo", "--yes")
    assert (code, text) == (1, f"Error: {UNIT} is not adopted\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", "there is no unit gone.service"),
        ("vllm@.service", "vllm@.service is a template; name an instance of it, like vllm@NAME.service"),
        ("vllm.socket", "vllm.socket is no service unit"),
        ("bandog.service", "bandog.service is bandog's own"),
        ("../x.service", "'../x.service' is no name of a unit"),
    ],
)
def test_what_cannot_be_adopted_is_one_clear_line(host: Host, name: str, says: str) -> None:
    assert host.adopt(name, "--yes") == (1, f"Error: {says}\n")


def test_a_malformed_config_json_is_one_clear_line_and_nothing_is_written(host: Host) -> None:
    before = host.files()
    for text, says in (("{", "is no JSON"), ('{"num_attention_heads": "many"}', 'num_attention_heads is "many"')):
        host.lay("models/qwen/config.json", text)
        code, told = host.adopt(UNIT, "--yes")
        assert code == 1 and says in told and told.count("\n") == 1, told
    assert host.files() == before


def test_a_mistake_in_the_configuration_stops_it_before_it_writes(host: Host) -> None:
    host.lay("etc/bandog/services.d/other.yaml", "service: vllm-qwen\nunit: other.service\n")
    before = host.files()
    code, _ = host.adopt(UNIT, "--name", "not a name", "--yes")
    assert code == 78 and host.files() == before


def test_a_name_that_is_taken_gets_a_number(host: Host) -> None:
    host.lay("etc/bandog/services.d/other.yaml", "service: vllm-qwen\nunit: other.service\n")
    assert "service: vllm-qwen-2" in host.adopt(UNIT, "--dry-run")[1]


def test_a_record_that_names_other_files_is_not_obeyed(host: Host) -> None:
    host.lay(DROP_IN, f"#@ unit {UNIT}\n#@ file /etc/passwd\n[Service]\n")
    code, text = host.adopt(UNIT, "--undo", "--yes")
    assert code == 1 and "remove it by hand" in text


def test_a_container_at_risk_is_named_and_systemd_is_not_reloaded(host: Host) -> None:
    host.lay("sys/fs/cgroup/system.slice/docker-abc.scope/cgroup.procs", "77\n")
    (host.root / "proc").unlink()
    host.lay("proc/77/root/dev/nvidia0", "")
    for part in ("sys/kernel/random/boot_id", "uptime", "stat"):
        host.lay(f"proc/{part}", Path(f"/proc/{part}").read_text())
    code, text = host.adopt(UNIT, "--yes")
    assert code == 1 and host.manager.reloads == 0
    assert "docker-abc.scope (process 77 uses /dev/nvidia0) would lose its GPUs" in text
    assert "  systemctl daemon-reload\n" in text
    assert (host.root / DROP_IN).exists()


def test_json_cannot_ask(host: Host) -> None:
    assert host.adopt(UNIT, "--json")[0] == 2


def test_without_pid_1_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "proc").symlink_to("/proc")
    done = CliRunner().invoke(main, ["adopt", UNIT, "--yes"], env={"BANDOG_ROOT": str(tmp_path)})
    assert done.exit_code == 1 and done.output.startswith("Error: systemd did not answer")
