"""`bandog explain` as people call it: on files and pipes, with their configuration, for programs and for eyes."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bandog.cli import main

CORPUS = Path(__file__).parents[1] / "corpus"
XID_94 = "[  100.000000] NVRM: Xid (PCI:0000:e5:00): 94, pid=7, name=python3, Contained: SM. RST: No, D-RST: No"
FORGED = "[  101.000000] tmpfs: Unknown parameter 'NVRM: GPU 0000:e5:00.0: GPU has fallen off the bus.'"
RECOVERED = "[  102.000000] NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (x) to 0x0 (None)"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration that enforces, with one service on the GPU of XID_94."""
    for folder in ("services.d", "policies.d"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bandog.yaml").write_text('mode: enforce\nnotify: {oncall: {urls: "json://127.0.0.1:1"}}\n')
    (tmp_path / "services.d" / "qwen.yaml").write_text(
        "service: qwen\nunit: vllm-qwen.service\ngpus: [0000:e5:00.0]\nready: {tcp: '127.0.0.1:8000'}\n"
    )
    return tmp_path


def explain(*arguments: str, lines: str | bytes = "") -> Result:
    """Run the command in this process, with `lines` on standard input."""
    return CliRunner().invoke(main, ["explain", *arguments], input=lines)


def findings(result: Result) -> list[dict[str, Any]]:
    """What --json printed."""
    assert result.exit_code in (0, 1), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def samples() -> list[dict[str, str]]:
    """The rows of the sample file."""
    with (CORPUS / "nvrm-samples.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_sample_column_gives_address_code_and_pid_of_each_row(site: Path) -> None:
    """The first column of the samples, as one log."""
    rows = samples()
    told = findings(explain("--json", "--config", str(site), lines="\n".join(row["line"] for row in rows)))
    xids = {one["line"]: one for one in told if one["kind"] == "nvidia.xid"}
    expected = {number: row for number, row in enumerate(rows, start=1) if row["xid"].isdigit()}
    assert set(xids) == set(expected)
    for number, row in expected.items():
        one = xids[number]
        address = row["pci"] if "." in row["pci"] else row["pci"] + ".0"
        assert one["subject"] == f"gpu:{address}"
        assert one["facts"]["xid"] == int(row["xid"])
        assert str(one["facts"].get("pid", "-")) == row["pid"]
        assert one["policy"] is not None


@pytest.mark.parametrize("number", [1, 20, 60, 67, 68, 100])
def test_sample_row_alone_gives_what_it_gives_in_the_column(site: Path, number: int) -> None:
    """Nothing of a finding but its line comes from what stands around it."""
    rows = [row["line"] for row in samples()]
    whole = findings(explain("--json", "--config", str(site), lines="\n".join(rows)))
    alone = findings(explain("--json", "--config", str(site), lines=rows[number - 1]))
    assert [{**one, "line": number} for one in alone] == [one for one in whole if one["line"] == number]


def test_no_negative_kernel_sample_is_more_than_information(site: Path, tmp_path: Path) -> None:
    """Look-alikes and forgeries give nothing above info, or above warning where glued."""
    loaded = yaml.safe_load((CORPUS / "kernel-samples.yaml").read_text())["samples"]
    for sample in (one for one in loaded if one["negative"]):
        lines = [*sample.get("lines", []), *sample.get("raw", [])]
        lines += [json.dumps(sample["journal"])] if "journal" in sample else []
        path = tmp_path / sample["id"]
        path.write_text("\n".join(line.rstrip("\n") for line in lines) + "\n")
    told = findings(explain("--json", "--config", str(site), *map(str, sorted(tmp_path.glob("*-*")))))
    assert [
        one for one in told if one["severity"] not in ("info", "warning" if one["facts"].get("glued") else "info")
    ] == []


def test_document_of_a_finding(site: Path) -> None:
    """One object a line, with these keys and no others; `at` only where the log has a wall clock."""
    (one,) = findings(explain("--json", "--config", str(site), lines=XID_94))
    assert list(one) == ["line", "kind", "subject", "severity", "facts", "policy", "steps"]
    assert one["policy"] == "xid-94-contained-ecc"
    assert [step["do"] for step in one["steps"]][:2] == ["evidence", "restart"]
    assert one["steps"][1]["would"] is True and "qwen" in one["steps"][1]["why"]
    (dated,) = findings(explain("--json", "--config", str(site), lines=f"2026-02-03T11:40:55+00:00 h kernel: {XID_94}"))
    assert dated["at"] == "2026-02-03T11:40:55+00:00"


def test_observe_would_not_act() -> None:
    """What is shipped only observes."""
    (one,) = findings(explain("--json", "--no-site", lines=XID_94))
    assert [step["would"] for step in one["steps"] if step["do"] == "restart"] == [False]


def test_forged_line_never_acts(site: Path) -> None:
    """Fault text inside another record is a warning without any step."""
    (one,) = findings(explain("--json", "--config", str(site), lines=FORGED))
    assert (one["severity"], one["facts"]["glued"]) == ("warning", True)
    assert not any(step["would"] for step in one["steps"])


@pytest.mark.parametrize(("lines", "code"), [("", 0), ("usb 1-2: new device\n", 0), (RECOVERED, 0), (XID_94, 1)])
def test_exit_code(site: Path, lines: str, code: int) -> None:
    """0 if nothing is above info, else 1."""
    assert explain("--config", str(site), lines=lines).exit_code == code


def test_lines_are_counted_over_all_files(site: Path, tmp_path: Path) -> None:
    """Several logs, packed or not, are one."""
    first, second = tmp_path / "a.log", tmp_path / "b.gz"
    first.write_text(f"x\n{XID_94}\n")
    second.write_bytes(gzip.compress(f"x\n{XID_94}\n".encode()))
    told = findings(explain("--json", "--config", str(site), str(first), str(second), "-", lines=XID_94))
    assert [one["line"] for one in told] == [2, 4, 5]


def test_text_for_people(site: Path) -> None:
    """What it means, who takes it, and each step with its reason."""
    shown = " ".join(explain("--config", str(site), lines=XID_94).output.split())
    for part in (
        "line 1 error nvidia.xid gpu:0000:e5:00.0",
        "Uncorrectable memory error contained to one application.",
        "policy xid-94-contained-ecc",
        "2. restart: would (acts on qwen)",
    ):
        assert part in shown


def test_hostile_name_does_not_reach_the_terminal(site: Path) -> None:
    """Escape sequences are shown, not sent."""
    raw = "4,1,1,-;NVRM: Xid (PCI:0000:e5:00): 43, pid=7, name=\\x1b[2J\\x07[b]x, Ch 0000000c"
    shown = explain("--config", str(site), lines=raw).output
    assert "\x1b" not in shown and "\x07" not in shown
    assert "process=\\x1b[2J\\x07[b]x" in shown


def test_unreadable_file_is_a_usage_error(site: Path, tmp_path: Path) -> None:
    """The file is named with the reason."""
    result = explain("--config", str(site), str(tmp_path / "missing.log"))
    assert result.exit_code == 2
    assert "missing.log: No such file or directory" in result.output


def test_bad_configuration_is_78_and_shows_the_way_out(site: Path) -> None:
    """A mistake is told with its place; --no-site looks without it."""
    (site / "bandog.yaml").write_text("mode: enforced\n")
    result = explain("--config", str(site), lines=XID_94)
    assert result.exit_code == 78
    assert "bandog.yaml:1:" in result.output and "--no-site" in result.output


def test_detector_that_is_off_finds_nothing(site: Path) -> None:
    """A plugin that the operator switched off is off here too."""
    with (site / "bandog.yaml").open("a") as file:
        file.write("plugins: {xid: off}\n")
    assert findings(explain("--json", "--config", str(site), lines=XID_94)) == []


def test_works_in_a_pipe(site: Path) -> None:
    """The installed command reads standard input to its end."""
    done = subprocess.run(
        [Path(sys.executable).with_name("bandog"), "explain", "--json", "--config", str(site)],
        input=f"x\n{XID_94}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["line"] == 2


def test_a_log_without_a_fault_says_that_it_was_read() -> None:
    result = explain("-", lines="[ 1.0] usb 1-1: new device\n[ 2.0] usb 1-1: gone\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "2 lines read; none states a fault that a detector knows\n"
    assert explain("--json", "-", lines="nothing\n").stderr == ""


def test_a_pipe_gets_each_line_in_one_piece_without_blanks_at_its_end(site: Path) -> None:
    lines = explain("--config", str(site), lines=XID_94).stdout.splitlines()
    assert any("Contained: SM" in line and "usable=yes" in line for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []
