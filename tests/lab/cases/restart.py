"""The first story: a kernel line, one restart, proof, one thread of messages; and what must cause nothing."""

from __future__ import annotations

from typing import Any

from ..lab import UNIT, Lab, body
from ..machine import wait_until
from ..scenario import scenario

GPU = "0000:e5:00"
SUBJECT = f"gpu:{GPU}.0"
POLICY = """policy: lab-xid
match: {kind: nvidia.xid, facts: {xid: [94]}}
severity: error
quiet: 5s
notify: [oncall]
steps:
  - do: evidence
  - do: restart
    with: {settle: 2s}
  - do: notify
    with: {to: [oncall], urgent: true, text: "$subject needs you"}
"""
MARKER = f"NVRM: Xid (PCI:{GPU}): 63, Row remapper event: the marker of the lab"


def xid(pid: int, name: str = "python3") -> str:
    """Return the driver's line about a contained ECC error of a process."""
    return f"NVRM: Xid (PCI:{GPU}): 94, pid={pid}, name={name}, Contained: SM (0x1). RST: No, D-RST: No"


def steps_of(shown: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (action, how it ended) of an incident's requests."""
    return [(one["request"]["action"], one["state"]) for one in shown["requests"]]


def assert_one_thread(lab: Lab, number: int) -> None:
    """All mails about the incident have one subject and refer to one id; all posts carry its number."""
    mails = [one for one in lab.mail.messages if f"#{number} " in str(one["subject"])]
    assert len({str(one["subject"]) for one in mails}) == 1, lab.titles()
    assert len({str(one["references"]) for one in mails}) == 1, [one["references"] for one in mails]
    assert mails[0]["references"]
    posts = [one for one in lab.hook.messages if str(one.get("incident")) == str(number)]
    assert posts, lab.hook.messages
    for words in ("Seen: Xid 94", "proved: restart", "Resolved"):
        assert any(words in body(one) for one in mails), (words, [body(one) for one in mails])
        assert any(words in one["message"] for one in posts), (words, posts)


@scenario("an Xid 94 that names a process: evidence, one restart, proved, told in one thread")
def xid_restarts(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    pid = lab.main_pid()
    mark = lab.mark()
    lab.machine.kernel_line(xid(pid))
    lab.await_mail("Resolved", 120)
    shown = lab.show(lab.await_incident("lab-xid")["id"])
    assert shown["incident"]["subject"] == SUBJECT
    assert shown["incident"]["state"] == "resolved"
    assert shown["incident"]["facts"]["pid"] == pid
    assert steps_of(shown) == [("evidence", "proved"), ("restart", "proved")], shown["requests"]
    assert lab.jobs(mark) == [("restart", UNIT)]
    assert lab.main_pid() not in (0, pid)
    lab.await_serving()
    assert_one_thread(lab, shown["incident"]["id"])


@scenario("the same with the process already dead when its line is read")
def dead_process(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    pid = lab.main_pid()
    lab.await_seen(pid)
    mark = lab.mark()
    lab.machine.ssh(f"kill -KILL {pid}")
    wait_until("the process is gone", 20, lambda: lab.main_pid() == 0)
    lab.machine.kernel_line(xid(pid))
    lab.await_mail("Resolved", 120)
    shown = lab.show(lab.await_incident("lab-xid")["id"])
    assert shown["incident"]["services"] == ["model"]
    assert steps_of(shown) == [("evidence", "proved"), ("restart", "proved")], shown["requests"]
    # systemd makes a start of the restart of a unit that is down
    assert lab.jobs(mark) in ([("restart", UNIT)], [("start", UNIT)])
    lab.await_serving()


@scenario("the same line from logger, from a process through /dev/kmsg and by mount option causes nothing")
def forged_lines(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    pid = lab.main_pid()
    vm = lab.machine
    mark = lab.mark()
    line = xid(pid)
    vm.put_stdin("logger -p kern.err", line)
    vm.put_stdin("logger -p user.err -t kernel", line)
    vm.put_stdin("tee /dev/kmsg", line)
    vm.put_stdin("tee /dev/kmsg", f"<3>{line}")
    # an option that no file system knows is printed by the kernel itself, a new line in it included
    short = line.split(",")[0]
    vm.put_stdin('mkdir -p /mnt/x; read -r it; mount -t tmpfs -o "$it" x /mnt/x; true', short)
    vm.put_stdin('mount -t tmpfs -o "$(printf \'x\\n%s\' "$(cat)")" x /mnt/x; true', short)
    vm.kernel_line(MARKER)
    wait_until(
        "the reader has come to the marker",
        60,
        lambda: any(one["subject"] == SUBJECT and "63" in one["policy"] for one in lab.incidents()),
    )
    assert not [one for one in lab.incidents() if one["policy"] == "lab-xid"], lab.incidents()
    assert lab.jobs(mark) == []
    assert lab.main_pid() == pid
    assert not [one for one in lab.mail.messages if "restart" in body(one)], lab.titles()


@scenario("by default nothing is asked of systemd, and people read what would have been done")
def observe_asks_nothing(lab: Lab) -> None:
    lab.reset(policies={"10-lab": POLICY})
    pid = lab.main_pid()
    mark = lab.mark()
    lab.machine.kernel_line(xid(pid))
    lab.await_mail("would have restarted model", 60)
    shown = lab.show(lab.await_incident("lab-xid")["id"])
    assert steps_of(shown) == [("evidence", "proved"), ("restart", "would")], shown["requests"]
    assert lab.jobs(mark, "*.service") == []
    assert lab.main_pid() == pid


@scenario("an Xid that came while the agent was stopped for ten seconds is acted on once")
def missed_line(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    pid = lab.main_pid()
    lab.await_seen(pid)
    mark = lab.mark()
    lab.machine.ssh("systemctl stop bandog")
    lab.machine.kernel_line(xid(pid))
    lab.machine.ssh("sleep 10; systemctl start bandog")
    lab.await_mail("Resolved", 120)
    lab.machine.ssh("systemctl restart bandog")
    assert len([one for one in lab.incidents() if one["policy"] == "lab-xid"]) == 1
    assert lab.jobs(mark) == [("restart", UNIT)]


@scenario("`systemctl reload` refuses a configuration with a mistake and keeps the old one")
def reload_refuses(lab: Lab) -> None:
    lab.reset(mode="enforce", policies={"10-lab": POLICY})
    vm = lab.machine
    vm.put(POLICY.replace("do: restart", "do: restrat"), "/etc/bandog/policies.d/10-lab.yaml")
    assert vm.status("systemctl reload bandog") != 0
    assert "restrat" in lab.machine.journal()
    pid = lab.main_pid()
    vm.kernel_line(xid(pid))
    lab.await_mail("Resolved", 120)
    assert lab.main_pid() != pid
    vm.put(POLICY, "/etc/bandog/policies.d/10-lab.yaml")
    vm.ssh("systemctl reload bandog && systemctl is-active bandog")
