"""The sender against a real SMTP server and a real webhook: threads, retries, hangs, spool, last sink."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sinks import SmtpSink, WebhookSink

import samples
from bandog.domain.changes import IncidentChanged
from bandog.domain.model import Incident, IncidentState, Severity, StepState
from bandog.host.clock import SystemClock
from bandog.host.paths import Paths
from bandog.host.site import ChildOutcome
from bandog.runtime.lastsink import LastSink
from bandog.runtime.outlet_queue import Pace
from bandog.runtime.secrets import Secrets
from bandog.runtime.sender import Sender
from bandog.store.rows import DropMessage, Row, SaveMessage

CLOCK = SystemClock(Paths())
QUICK = Pace(
    group=timedelta(milliseconds=50),
    first_retry=timedelta(milliseconds=50),
    last_retry=timedelta(milliseconds=100),
    urgent_retry=timedelta(milliseconds=50),
)


def incident(number: int = 12, **fields: Any) -> Incident:
    return samples.incident(number, at=CLOCK.now(), **fields)


def change(what: str = "opened", *, about: Incident | None = None, **fields: Any) -> IncidentChanged:
    return IncidentChanged(incident=about or incident(), what=what, tell=True, notify=("oncall",), **fields)


class Rig:
    """A sender with a spool and a last sink that a test can look into."""

    def __init__(self, root: Path, targets: dict[str, Sequence[str]], **options: Any) -> None:
        self.spool: dict[str, SaveMessage] = {}
        self.walls: list[bytes] = []
        self.told_last = threading.Event()
        (root / "dev").mkdir(exist_ok=True)
        self.kmsg = root / "dev/kmsg"
        self.kmsg.touch()
        self.secrets = Secrets()
        self.last = LastSink(Paths(root=root), CLOCK, self.secrets, child=self._child)
        self.sender = Sender(
            targets,
            host="gpu07",
            clock=CLOCK,
            secrets=self.secrets,
            last=self.last,
            save=self._save,
            **{"pace": QUICK, **options},
        )

    def _save(self, row: Row) -> None:
        if isinstance(row, SaveMessage):
            self.spool[row.id] = row
        elif isinstance(row, DropMessage):
            self.spool.pop(row.id, None)

    def _child(self, argv: Sequence[str], *, stdin: bytes = b"", **_: Any) -> ChildOutcome:
        self.walls.append(stdin)
        self.told_last.set()
        return ChildOutcome(code=0)


@contextmanager
def running(root: Path, targets: dict[str, Sequence[str]], **options: Any) -> Iterator[Rig]:
    spooled = options.pop("spooled", ())
    rig = Rig(root, targets, **options)
    rig.sender.start(spooled)
    try:
        yield rig
    finally:
        rig.sender.stop(timedelta())
        rig.last.close()


def body(mail: Any) -> str:
    return str(mail.get_payload(decode=True).decode())


def test_all_mails_of_an_incident_are_one_thread(tmp_path: Path) -> None:
    about = incident()
    with SmtpSink() as smtp, running(tmp_path, {"oncall": [smtp.url]}) as rig:
        rig.sender.tell(change("opened", about=about))
        smtp.wait(1)
        worse = replace(about, severity=Severity.CRITICAL)
        rig.sender.tell(change("step-ended", about=worse, action="restart", end=StepState.PROVED))
        first, second = smtp.wait(2)
    assert first["Subject"].startswith("[gpu07] #12 error: Xid 94 on gpu 0000:e5:00.0 (qwen)")
    assert second["Subject"] == first["Subject"]
    assert first["References"] == second["References"] == second["In-Reply-To"]
    assert first["References"].startswith("<incident-12.")
    assert first["Message-ID"] != second["Message-ID"]
    assert "bandog hold qwen 2h" in body(first)
    assert "Done and proved: restart qwen" in body(second)


def test_a_webhook_gets_the_incident_as_a_field(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": [hook.url]}) as rig:
        rig.sender.tell(change("resolved", about=incident(state=IncidentState.RESOLVED)))
        [got] = hook.wait(1)
    assert got["incident"] == 12
    assert (got["what"], got["state"], got["severity"], got["type"]) == ("resolved", "resolved", "error", "success")
    assert (got["subject"], got["kind"], got["services"]) == ("gpu:0000:e5:00.0", "nvidia.xid", ["qwen"])


def test_changes_close_together_make_one_message(tmp_path: Path) -> None:
    with (
        WebhookSink() as hook,
        running(tmp_path, {"oncall": [hook.url]}, pace=replace(QUICK, group=timedelta(seconds=1))) as rig,
    ):
        rig.sender.tell(change("opened"))
        rig.sender.tell(change("step-started", action="restart"))
        rig.sender.tell(change("step-ended", action="restart", end=StepState.PROVED))
        [got] = hook.wait(1)
    assert got["message"].index("Seen:") < got["message"].index("Doing:") < got["message"].index("Done and proved:")


def test_a_page_waits_for_no_grouping(tmp_path: Path) -> None:
    with (
        WebhookSink() as hook,
        running(tmp_path, {"oncall": [hook.url]}, pace=replace(QUICK, group=timedelta(hours=1))) as rig,
    ):
        rig.sender.tell_request(incident(), to=["oncall"], text="come\nnow", urgent=True)
        [got] = hook.wait(1)
    assert got["message"].startswith("come\nnow")
    assert got["urgent"] is True
    assert got["type"] == "failure"


def test_many_incidents_at_once_are_one_digest(tmp_path: Path) -> None:
    with (
        SmtpSink() as smtp,
        running(tmp_path, {"oncall": [smtp.url]}, pace=replace(QUICK, group=timedelta(milliseconds=300))) as rig,
    ):
        for number in range(1, 9):
            rig.sender.tell(change(about=incident(number)))
        [mail] = smtp.wait(1)
    assert mail["Subject"].replace("\n ", " ").startswith("[gpu07] 8 incidents at once: #1, #2")
    assert body(mail).count("Seen: Xid 94") == 8
    assert mail["References"].count("<incident-") == 8


def test_what_a_server_refuses_is_sent_again_and_leaves_the_spool_when_taken(tmp_path: Path) -> None:
    with SmtpSink() as smtp, running(tmp_path, {"oncall": [smtp.url]}) as rig:
        smtp.mode = "refuse"
        rig.sender.tell(change())
        smtp.wait_asked(2)
        assert len(rig.spool) == 1
        smtp.mode = "ok"
        smtp.wait(1)
        assert rig.sender.stop()
    assert rig.spool == {}


def test_a_server_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    with SmtpSink() as smtp, WebhookSink() as hook, running(tmp_path, {"oncall": [smtp.url, hook.url]}) as rig:
        smtp.mode = "hang"
        rig.sender.tell(change("opened"))
        hook.wait(1)
        rig.sender.tell(change("resolved"))
        hook.wait(2)


def test_a_delivery_past_its_deadline_is_given_up_and_tried_again(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": [hook.url]}, deadline=timedelta(milliseconds=300)) as rig:
        hook.mode = "hang"
        rig.sender.tell(change())
        hook.wait_asked(2)
        assert rig.sender.overruns >= 1
        hook.mode = "ok"
        hook.release()
        hook.wait(1)


def test_threads_that_hang_in_one_outlet_are_bounded(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": [hook.url]}, deadline=timedelta(milliseconds=100)) as rig:
        hook.mode = "hang"
        rig.sender.tell(change())
        hook.wait_asked(3)
        for _ in range(3):
            rig.sender.say("something else")
        assert sum(one.name == "bandog-tell-oncall/0" for one in threading.enumerate()) <= 3
        hook.mode = "ok"
        hook.release()
        hook.wait(1)


def test_what_was_not_delivered_is_sent_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, {"oncall": ["json://127.0.0.1:1/"]}) as rig:
        rig.sender.tell(change())
        spooled = list(rig.spool.values())
    assert len(spooled) == 1
    old = {**spooled[0].payload["message"]}
    old["made"] = {**old["made"], "boottime": old["made"]["boottime"] - 3 * 3600}
    late = SaveMessage(id=spooled[0].id, payload={**spooled[0].payload, "message": old})
    with WebhookSink() as hook, running(tmp_path, {"oncall": [hook.url]}, spooled=[late]) as rig:
        [got] = hook.wait(1)
    assert got["incident"] == 12
    assert got["message"].startswith("(written 3h ago; it could not be delivered before)")


def test_the_last_sink_is_told_when_every_outlet_fails(tmp_path: Path) -> None:
    with running(tmp_path, {"oncall": ["json://127.0.0.1:1/", "json://127.0.0.1:2/"]}) as rig:
        rig.sender.tell(change(urgent=True))
        assert rig.told_last.wait(10)
        line = rig.kmsg.read_text()
    assert line.startswith("<10>bandog: (gpu07) #12 error: Xid 94 on gpu 0000:e5:00.0")
    assert rig.walls[0].startswith(b"bandog: (gpu07) #12")


def test_the_last_sink_is_told_when_no_target_is_configured(tmp_path: Path) -> None:
    with running(tmp_path, {}) as rig:
        rig.sender.say("the store is stuck", urgent=True)
        assert rig.told_last.wait(10)
    assert "the store is stuck" in rig.kmsg.read_text()


def test_an_outlet_that_works_keeps_the_last_sink_silent(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": ["json://127.0.0.1:1/", hook.url]}) as rig:
        rig.sender.tell(change(urgent=True))
        hook.wait(1)
    assert rig.walls == []


def test_a_url_that_apprise_cannot_read_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    with running(tmp_path, {"oncall": ["nonsense://hunter2-secret/"]}) as rig:
        rig.sender.tell(change(urgent=True))
        assert rig.told_last.wait(10)
    assert list(rig.sender.problems) == ["oncall/0"]
    assert "hunter2" not in str(rig.sender.problems)


def test_a_reload_sends_what_waits_to_the_new_address(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": ["json://127.0.0.1:1/"]}) as rig:
        rig.sender.tell(change())
        rig.sender.retarget({"oncall": [hook.url]})
        assert hook.wait(1)[0]["incident"] == 12


def test_telling_returns_while_nothing_answers(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": [hook.url]}) as rig:
        hook.mode = "hang"
        began = CLOCK.now()
        for number in range(500):
            rig.sender.tell(change(about=incident(number)))
        assert CLOCK.now().since(began) < timedelta(seconds=5)


def test_a_known_secret_in_a_text_is_masked(tmp_path: Path) -> None:
    with WebhookSink() as hook, running(tmp_path, {"oncall": [hook.url]}) as rig:
        rig.secrets.add("s3cr3t-t0ken-value")
        rig.sender.say("failed for s3cr3t-t0ken-value and json://user:pw@host/")
        [got] = hook.wait(1)
    assert "s3cr3t" not in got["message"]
    assert "pw@host" not in got["message"]


def test_a_change_that_nobody_shall_hear_is_not_told(tmp_path: Path) -> None:
    with running(tmp_path, {"oncall": ["json://127.0.0.1:1/"]}) as rig:
        rig.sender.tell(replace(change(), tell=False))
        assert rig.spool == {}


def test_without_a_kernel_log_device_the_last_sink_still_walls(tmp_path: Path) -> None:
    walls: list[bytes] = []

    def child(argv: Sequence[str], *, stdin: bytes = b"", **_: Any) -> ChildOutcome:
        walls.append(stdin)
        return ChildOutcome(code=0)

    sink = LastSink(Paths(root=tmp_path / "nowhere"), CLOCK, Secrets(), child=child)
    assert sink.tell("down", urgent=True)
    sink.close()
    assert walls == [b"bandog: down\n"]
