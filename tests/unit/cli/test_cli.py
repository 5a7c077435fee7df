"""The command line: every command has help, prints JSON where it says so, and exits as the manual tells."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bandog import Incident, Request, Severity
from bandog.cli import COMMANDS, main
from bandog.domain.model import IncidentState, StepState
from bandog.store import Store
from bandog.store.rows import AddEvent, SavedRequest, SaveIncident
from bandog.testing import FakeClock

TOP = Path(__file__).parents[3]


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(words), env=env)
    return done.exit_code, done.output


def moved(tmp_path: Path) -> dict[str, str]:
    """A host whose three trees are empty."""
    for name in ("etc", "state", "run"):
        (tmp_path / name).mkdir(exist_ok=True)
    return {
        "BANDOG_ETC": str(tmp_path / "etc"),
        "BANDOG_STATE": str(tmp_path / "state"),
        "BANDOG_RUN": str(tmp_path / "run"),
    }


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_in_words(command: str) -> None:
    code, text = run(command, "--help")
    assert code == 0
    assert len(text.split("Options:")[0].split()) > 8, text


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_says_what_it_does(command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    commands = list(found.commands.values()) if isinstance(found, click.Group) else [found]
    silent = [
        option.opts
        for one in commands
        for option in one.params
        if isinstance(option, click.Option) and not option.hidden and not option.help and "--limit" not in option.opts
    ]
    assert silent == []


def test_an_unknown_command_is_a_usage_error() -> None:
    assert run("melt")[0] == 2


@pytest.mark.parametrize(
    "words", [("hold",), ("hold", "2 hours", "--reason", "x"), ("replay",), ("replay", "--boot", "0", "--since", "1h")]
)
def test_wrong_words_are_a_usage_error(words: tuple[str, ...]) -> None:
    assert run(*words)[0] == 2


def test_status_without_a_daemon_says_so_and_exits_1(tmp_path: Path) -> None:
    code, text = run("status", "--json", env=moved(tmp_path))
    assert code == 1
    assert json.loads(text)["running"] is False


@pytest.mark.parametrize(
    "words",
    [("ack", "1"), ("rearm",), ("release",), ("hold", "1h", "--reason", "x"), ("notify-test",)],
    ids=lambda words: words[0],
)
def test_an_order_without_a_daemon_is_an_error_that_names_it(words: tuple[str, ...], tmp_path: Path) -> None:
    code, text = run(*words, env=moved(tmp_path))
    assert code == 1
    assert "not running" in text


def test_incidents_without_a_database_says_so(tmp_path: Path) -> None:
    code, text = run("incidents", env=moved(tmp_path))
    assert code == 1
    assert "bandog.db" in text


def test_plugins_are_listed_without_a_daemon(tmp_path: Path) -> None:
    code, text = run("plugins", "--json", env=moved(tmp_path))
    rows = {row["name"]: row["state"] for row in map(json.loads, text.splitlines())}
    assert code == 0
    assert {"xid", "hung-task", "restart", "notify", "evidence"} <= set(rows)


def test_replay_tells_the_story_of_a_log_and_its_budget(tmp_path: Path) -> None:
    env = moved(tmp_path)
    services = tmp_path / "etc" / "services.d"
    services.mkdir()
    (services / "qwen.yaml").write_text("service: qwen\nunit: qwen.service\ngpus: all\nready: {unit: true}\n")
    log = tmp_path / "kernel.log"
    log.write_text("[  100.000000] NVRM: Xid (PCI:0000:e5:00): 94, Contained: SM (0x1). RST: No, D-RST: No\n")
    code, text = run("replay", str(log), "--json", "--mode", "enforce", "--after", "2d", env=env)
    lines = [json.loads(line) for line in text.splitlines()]
    assert code == 1
    assert [one["end"] for one in lines if one.get("action") == "restart" and "end" in one] == ["proved"]
    assert lines[-1]["summary"]["would"] == {"restart": 1}


def test_a_log_that_cannot_be_read_is_a_usage_error_that_names_it(tmp_path: Path) -> None:
    damaged = tmp_path / "kernel.log.gz"
    damaged.write_bytes(b"\x1f\x8b\x08cut short")
    for words in (("explain", "--no-site"), ("replay",)):
        code, text = run(*words, str(damaged), env=moved(tmp_path))
        assert code == 2, words
        assert "cannot read" in text and "kernel.log.gz" in text


def test_doctor_prints_json_lines() -> None:
    _, text = run("doctor", "hung-task", "--json")
    assert all(json.loads(line)["topic"] == "hung-task" for line in text.splitlines())


def test_services_start_dry_run_names_the_order(tmp_path: Path) -> None:
    env = moved(tmp_path)
    folder = tmp_path / "etc" / "services.d"
    folder.mkdir()
    for name, order in (("small", 2), ("large", 1)):
        (folder / f"{name}.yaml").write_text(f"service: {name}\nunit: {name}.service\nstart: {{order: {order}}}\n")
    code, text = run("services", "start", "--dry-run", "--json", env=env)
    assert code == 0, text
    assert [json.loads(line)["service"] for line in text.splitlines()] == ["large", "small"]
    assert run("services", "start", "absent", env=env)[0] == 2


def test_the_readme_and_the_manual_name_every_command() -> None:
    for document in (TOP / "README.md", *sorted((TOP / "packaging" / "man").glob("bandog.8*"))):
        text = document.read_text()
        assert [name for name in COMMANDS if name not in text and name.replace("-", "\\-") not in text] == [], document


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e[bold]\ud800\n#99 resolved"


def test_an_incident_whose_step_was_only_observed_is_marked(tmp_path: Path) -> None:
    env = moved(tmp_path)
    now = FakeClock().now()
    incident = Incident(
        id=1,
        policy="xid",
        subject="host",
        kind="nvidia.xid",
        severity=Severity.ERROR,
        state=IncidentState.OPEN,
        opened=now,
        last=now,
        step=0,
        step_state=StepState.WOULD,
        why="would have restarted qwen",
    )

    async def keep() -> None:
        store = Store(tmp_path / "state" / "bandog.db", clock=FakeClock())
        await store.open(timedelta(seconds=5))
        await store.commit(SaveIncident(incident=incident))
        await store.close(timedelta(seconds=5))

    asyncio.run(keep())
    for words in (("incidents",), ("show", "1")):
        assert "waits for its next finding" in " ".join(run(*words, env=env)[1].split()), words
    for command in (("incidents", "--json"), ("show", "1", "--json")):
        assert "waits for its next finding" in json.loads(run(*command, env=env)[1])["waits"], command


def test_what_a_terminal_would_obey_in_a_name_is_shown_and_not_sent(tmp_path: Path) -> None:
    """A process chooses its name, and the kernel prints it into the line that an incident quotes."""
    env = moved(tmp_path)
    now = FakeClock().now()
    incident = Incident(
        id=1,
        policy="xid",
        subject=f"task:{HOSTILE}",
        kind="task.hung",
        severity=Severity.ERROR,
        state=IncidentState.OPEN,
        opened=now,
        last=now,
        facts={"process": HOSTILE},
        why=HOSTILE,
    )

    async def keep() -> None:
        store = Store(tmp_path / "state" / "bandog.db", clock=FakeClock())
        await store.open(timedelta(seconds=5))
        await store.commit(SaveIncident(incident=incident), AddEvent(incident=1, at=now, what="opened", why=HOSTILE))
        await store.close(timedelta(seconds=5))

    asyncio.run(keep())
    for words in (("incidents",), ("show", "1")):
        _, text = run(*words, env=env)
        assert "owned" in text
        assert not [one for one in text if not (one.isprintable() or one == "\n")], words
        assert not any(line.startswith("#99") for line in text.splitlines())


def test_evidence_that_was_taken_is_done_and_not_proved(tmp_path: Path) -> None:
    env = moved(tmp_path)
    clock = FakeClock()
    incident = Incident(
        id=1,
        policy="xid",
        subject="host",
        kind="nvidia.xid",
        severity=Severity.ERROR,
        state=IncidentState.OPEN,
        opened=clock.now(),
        last=clock.now(),
    )
    requests = [
        Request(
            id=f"1.{number}",
            incident=1,
            policy="xid",
            kind="nvidia.xid",
            subject="host",
            step=number,
            action=action,
            disruptive=action == "restart",
            service="qwen",
            found_at=clock.now(),
            made_at=clock.now(),
        )
        for number, action in enumerate(("evidence", "restart"))
    ]

    async def keep() -> None:
        store = Store(tmp_path / "state" / "bandog.db", clock=clock)
        await store.open(timedelta(seconds=5))
        await store.commit(SaveIncident(incident=incident))
        for one in requests:
            await store.commit(SavedRequest(request=one, state=StepState.PROVED, proving=clock.now()))
        await store.close(timedelta(seconds=5))

    asyncio.run(keep())
    text = run("show", "1", env=env)[1]
    assert "evidence of qwen: done" in text
    assert "restart of qwen: proved" in text


def test_check_and_explain_read_the_tree_that_the_environment_names(tmp_path: Path) -> None:
    env = moved(tmp_path)
    (tmp_path / "etc" / "bandog.yaml").write_text("mood: good\n")
    log = tmp_path / "log"
    log.write_text("")
    for words in (("check",), ("explain", str(log))):
        code, text = run(*words, env=env)
        assert code == 78, words
        assert 'unknown key "mood"' in text


def test_a_user_without_rights_is_told_of_sudo() -> None:
    # Everything is imported first: nobody else may be allowed to read this checkout.
    program = (
        "import os, bandog.daemon, bandog.cli.run; os.geteuid() or os.seteuid(65534); "
        "bandog.cli.main(['run', '--root', '/nonexistent'])"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert "use sudo" in done.stderr.splitlines()[0]


def test_a_host_without_a_boot_id_gets_one_line(tmp_path: Path) -> None:
    code, text = run("run", "--root", str(tmp_path))
    assert code == 1
    assert "no boot id" in text
    assert len(text.splitlines()) == 1


def test_a_full_disk_behind_the_output_gets_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("NVRM: Xid (PCI:0000:e5:00): 94, pid=1, name=x, Contained\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "bandog", "explain", "--json", str(log)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write: No space left on device\n"


def test_a_log_in_utf_16_is_named_as_such(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("NVRM: Xid (PCI:0000:e5:00): 94, pid=1, name=x, Contained\n", encoding="utf-16")
    code, text = run("explain", str(log))
    assert code == 2
    assert "UTF-16" in text


def test_a_log_in_utf_16_without_a_mark_is_named_as_such_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for encoding in ("utf-16-le", "utf-16-be"):
        log.write_bytes("NVRM: Xid (PCI:0000:e5:00): 94, Contained\n".encode(encoding))
        code, text = run("explain", str(log))
        assert code == 2, encoding
        assert "UTF-16" in text


def test_a_line_in_a_pipe_that_stays_open_is_explained_at_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "bandog", "explain", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as explain:
        assert explain.stdin is not None and explain.stdout is not None
        for xid in (94, 95):
            explain.stdin.write(b"[  100.000000] NVRM: Xid (PCI:0000:e5:00): %d, Contained\n" % xid)
            explain.stdin.flush()
            assert json.loads(explain.stdout.readline())["facts"]["xid"] == xid
        explain.stdin.close()
        assert explain.wait(10) == 1


def test_the_agent_runs_with_all_its_streams_closed(tmp_path: Path) -> None:
    env = moved(tmp_path)
    (tmp_path / "state").chmod(0o700)
    done = subprocess.run(
        ["sh", "-c", 'exec timeout -s TERM 3 "$0" -m bandog run <&- >&- 2>&-', sys.executable],
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == 124, "it did not run until it was told to stop"
