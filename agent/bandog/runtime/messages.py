"""The texts that people get: what was seen, what was done, what comes next, how to stop it.

Names and log text come from processes that nobody has vetted. They are quoted on one line, without
control characters, and without anything that a chat or mail program would act on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..domain.changes import IncidentChanged
from ..domain.model import EMPTY, Incident, IncidentState, Instant, Severity, StepState
from ..domain.policy import Policy, format_duration
from ..domain.subjects import id_of, type_of

MAX_TITLE = 180
MAX_TEXT = 1500
MAX_BODY = 8000
_FACT = 160
_FACTS = 14
# A message that waited longer than this says so.
_LATE = timedelta(minutes=2)
_NEUTRAL = str.maketrans({"@": "＠", "<": "‹", ">": "›", "`": "'", "[": "(", "]": ")"})
_LINK = re.compile(r"(?i)\b(h)tt(ps?://)")
_SPACE = re.compile(r"\s+")

_WORDS = {
    "nvidia.xid": "Xid {xid}",
    "nvidia.sxid": "SXid {sxid}",
    "task.hung": "task hung in the kernel",
    "gpu.lost": "GPU lost",
    "gpu.missing": "GPU missing",
    "gpu.recovery-needed": "GPU asks for {recovery}",
    "gpu.row-remap-pending": "GPU memory rows wait for a reset",
    "gpu.row-remap-failed": "GPU memory row not remapped",
    "gpu.ecc-uncorrected": "uncorrected GPU memory errors",
    "gpu.throttled": "GPU throttled",
    "gpu.link-degraded": "GPU link degraded",
    "gpu.driver-hung": "GPU driver hung",
    "gpu.driver-mismatch": "GPU driver and library differ",
    "memory.corrected": "corrected memory errors",
    "memory.uncorrected": "uncorrected memory error",
    "service.down": "service down",
    "service.stalled": "service stalled",
    "process.oom-killed": "process killed for memory",
    "filesystem.read-only": "file system read-only",
}
_DID = {"restart": "restarted", "reboot": "rebooted", "relaunch": "relaunched"}

_ON_CARDS = ("relaunch", "reset-gpu")
_PAPERS = {"serial": "serial", "part_number": "part number", "uuid": "UUID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One thing to tell. Goes to the spool as JSON; holds no secret and no address.

    `to` are names of `notify:`; () means everyone. `fields` reach webhooks beside the text.
    """

    id: str
    to: tuple[str, ...]
    title: str
    text: str
    made: Instant
    incident: int | None = None
    thread: str = ""
    what: str = ""
    footer: str = ""
    tone: str = "warning"  # info | success | warning | failure, Apprise's words
    urgent: bool = False
    fields: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What one delivery carries. `threads` are message ids for `References:`."""

    title: str
    body: str
    tone: str = "warning"
    threads: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


def plain(text: object, limit: int = _FACT) -> str:
    """Return hostile text as one harmless line: nothing to click, mention, format or overwrite with."""
    whole = _SPACE.sub(" ", str(text)[: limit * 4]).strip()
    if not (whole.isascii() and whole.isprintable()):
        whole = "".join(one if _visible(one) else f"\\u{ord(one):04x}" for one in whole)
    shown = _LINK.sub(r"\1xx\2", whole).translate(_NEUTRAL)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _visible(character: str) -> bool:
    # C: controls, direction overrides, surrogates, unassigned; Zl and Zp: line separators.
    category = unicodedata.category(character)
    return not category.startswith("C") and category not in ("Zl", "Zp")


def thread_of(incident: Incident, host: str) -> str:
    """Return the message id that all mails of an incident refer to; it stays the same over restarts."""
    return f"<incident-{incident.id}.{incident.opened.boot_id[:8]}@{_label(host)}.bandog>"


def _label(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", host) or "localhost"


def kind_words(kind: str, facts: Mapping[str, Any]) -> str:
    """Return a kind in people's words, `Xid 94` for `nvidia.xid`."""
    shape = _WORDS.get(kind)
    if shape is None:
        return plain(kind.replace(".", " ").replace("-", " "))
    try:
        return plain(shape.format_map(facts), 60)
    except KeyError:
        return kind


def title_of(incident: Incident, host: str) -> str:
    """Return the title of an incident's thread: `[gpu07] #12 error: Xid 94 on gpu 0000:e5:00.0 (qwen)`."""
    drill = "[DRILL] " if incident.drill else ""
    services = f" ({', '.join(plain(name, 40) for name in incident.services[:3])})" if incident.services else ""
    about = f"{incident.severity.value}: {kind_words(incident.kind, incident.facts)}"
    return f"{drill}[{plain(host, 40)}] #{incident.id} {about} on {_subject(incident.subject)}{services}"[:MAX_TITLE]


def _subject(subject: str) -> str:
    name = id_of(subject)
    return plain(f"{type_of(subject)} {name}" if name else subject, 60)


def text_of(change: IncidentChanged, policy: Policy | None) -> str:
    """Return the paragraph about one change."""
    incident = change.incident
    lines = [_headline(change)]
    if change.what in ("opened", "stuck", "reminder"):
        lines += _seen(incident, change)
    elif change.what == "step-ended" and change.action in _ON_CARDS:
        lines += card_lines(incident.subject, incident.facts)
    following = _next(change, policy)
    if following:
        lines.append(f"Next: {following}")
    text = "\n".join(lines)
    if incident.drill:
        text = f"[DRILL] This is an exercise, not a fault.\n{text}"
    return text[:MAX_TEXT]


def card_lines(subject: str, facts: Mapping[str, Any]) -> list[str]:
    """Return a card's papers and history, as a manufacturer asks for them; [] where a finding carries none."""
    papers = [f"{words} {plain(facts[name], 80)}" for name, words in _PAPERS.items() if facts.get(name)]
    if type_of(subject) != "gpu" or not papers:
        return []
    lines = [f"Card: {', '.join(papers)}, slot {plain(id_of(subject), 40)}"]
    if facts.get("history"):
        lines.append(f"History: {plain(facts['history'], 300)}")
    return lines


def footer_of(incident: Incident) -> str:
    """Return how to look closer, take over, and stop us."""
    target = next(iter(incident.services), incident.policy)
    return (
        f"Look: bandog show {incident.id}   Take over: bandog ack {incident.id}\n"
        f"Stop us: bandog hold {plain(target, 60)} 2h --reason '…'"
    )


def tone_of(change: IncidentChanged) -> str:
    """Return Apprise's word for how bad the news is."""
    if change.what == "resolved" or change.end is StepState.PROVED:
        return "success"
    if change.urgent or change.what in ("stuck", "unresolved") or change.end is StepState.FAILED:
        return "failure"
    return "info" if change.incident.severity is Severity.INFO else "warning"


def fields_of(incident: Incident, host: str, what: str, action: str | None = None) -> dict[str, Any]:
    """Return what a webhook gets beside title and text; `incident` is the number."""
    fields: dict[str, Any] = {
        "incident": incident.id,
        "host": host,
        "what": what,
        "state": incident.state.value,
        "severity": incident.severity.value,
        "kind": incident.kind,
        "subject": incident.subject,
        "policy": incident.policy,
        "services": list(incident.services),
        "drill": incident.drill,
    }
    return {**fields, "action": action} if action else fields


def compose(messages: Sequence[Message], now: Instant, host: str) -> Mail:
    """Return one delivery for messages of one incident, or a digest for those of several."""
    if len({(message.incident, message.title) for message in messages}) == 1:
        return _letter(messages, now)
    return _digest(messages, now, host)


def _letter(messages: Sequence[Message], now: Instant) -> Mail:
    last = messages[-1]
    paragraphs = [_aged(message, now) for message in messages]
    if last.footer:
        paragraphs.append(last.footer)
    return Mail(
        title=last.title,
        body="\n\n".join(paragraphs)[:MAX_BODY],
        tone=last.tone if last.tone == "success" else _worst(messages),
        threads=(last.thread,) if last.thread else (),
        fields=last.fields,
    )


def _digest(messages: Sequence[Message], now: Instant, host: str) -> Mail:
    by_title: dict[str, list[Message]] = {}
    for message in messages:
        by_title.setdefault(message.title, []).append(message)
    paragraphs = [
        "\n".join([title, *(f"  {line}" for one in group for line in _aged(one, now).splitlines())])
        for title, group in by_title.items()
    ]
    incidents = sorted({one.incident for one in messages if one.incident is not None})
    numbers = ", ".join(f"#{number}" for number in incidents[:12]) + (" …" if len(incidents) > 12 else "")
    body = "\n\n".join(paragraphs)
    if len(body) > MAX_BODY:
        body = body[:MAX_BODY] + "\n… and more: bandog incidents"
    return Mail(
        title=f"[{plain(host, 40)}] {len(incidents)} incidents at once: {numbers}"[:MAX_TITLE],
        body=body,
        tone=_worst(messages),
        threads=tuple(dict.fromkeys(one.thread for one in messages if one.thread))[:10],
        fields={"host": host, "what": "digest", "incidents": incidents},
    )


def _aged(message: Message, now: Instant) -> str:
    age = now.since(message.made)
    if age < _LATE:
        return message.text
    rounded = timedelta(seconds=int(age.total_seconds()) // 60 * 60)
    return f"(written {format_duration(rounded)} ago; it could not be delivered before)\n{message.text}"


def _worst(messages: Sequence[Message]) -> str:
    order = ("info", "success", "warning", "failure")
    return max((message.tone for message in messages), key=lambda tone: order.index(tone) if tone in order else 2)


# --- the sentences ---------------------------------------------------------------------------------


def _headline(change: IncidentChanged) -> str:
    incident, why = change.incident, plain(change.why, 500)
    told = f": {why}" if why else ""
    match change.what:
        case "opened":
            return f"Seen: {kind_words(incident.kind, incident.facts)} on {_subject(incident.subject)}"
        case "step-started" | "step-waiting" | "step-proving":
            word = {"step-started": "Doing", "step-waiting": "Waiting", "step-proving": "Proving"}[change.what]
            return f"{word}: {_act(change)}{told}"
        case "step-ended":
            return _step_end(change, told)
        case "stuck":
            return f"STUCK: the ladder is used up and the fault is not gone; a person is needed{told}"
        case "reminder":
            return f"STILL OPEN: {incident.state.value}{told}"
        case "resolved":
            return f"Resolved{told}"
        case "unresolved":
            return f"Quiet, but nothing was proved to have helped; it stays on the list{told}"
        case "inhibited" | "joined":
            to = f" #{incident.joined}" if incident.joined is not None else ""
            return f"Joined incident{to}{told}"
        case "acked":
            return f"Taken over by {plain(incident.acked_by or 'a person')}{told}"
        case other:
            return f"{other.replace('-', ' ').capitalize()}{told}"


def _act(change: IncidentChanged) -> str:
    services = ", ".join(plain(name, 40) for name in change.incident.services[:3])
    action = change.action or "step"
    return f"{action} {services}" if services and action in _DID else action


def _step_end(change: IncidentChanged, told: str) -> str:
    act = _act(change)
    match change.end:
        case StepState.PROVED:
            return f"Done and proved: {act}{told}"
        case StepState.FAILED:
            return f"Failed: {act}{told}"
        case StepState.SKIPPED:
            return f"Skipped: {act}{told}"
        case StepState.EXHAUSTED:
            return f"Not done, the limit is used up: {act}{told}"
        case StepState.WOULD:
            return _would(change)
        case _:
            return f"Ended: {act}{told}"


def _would(change: IncidentChanged) -> str:
    """The sentence of observe mode: `would have restarted qwen (mode: observe)`."""
    if "would have" in change.why:
        text = plain(change.why, 500)
    else:
        services = ", ".join(plain(name, 40) for name in change.incident.services[:3])
        verb = _DID.get(change.action or "", f"run {change.action or 'the step'}")
        text = f"would have {verb} {services or 'nothing: no service is known'}".strip()
    return text if "observe" in text else f"{text} (mode: observe)"


def _seen(incident: Incident, change: IncidentChanged) -> list[str]:
    facts = dict(change.finding.facts if change.finding is not None else incident.facts)
    lines = []
    text = facts.pop("text", None)
    if text is not None:
        lines.append(f"Line: {plain(text, 300)}")
    lines += card_lines(incident.subject, facts)
    for name in (*_PAPERS, "history") if type_of(incident.subject) == "gpu" else ():
        facts.pop(name, None)
    shown = [f"{name}={plain(value, 80)}" for name, value in list(facts.items())[:_FACTS]]
    if shown:
        lines.append(f"Facts: {', '.join(shown)}")
    if incident.findings > 1:
        lines.append(f"Findings so far: {incident.findings}")
    lines.append(f"Services: {', '.join(plain(name, 40) for name in incident.services) or 'none of ours'}")
    lines.append(f"Policy: {incident.policy}")
    return lines


def _next(change: IncidentChanged, policy: Policy | None) -> str:
    """Say what the ladder does from here, as far as the policy tells."""
    incident = change.incident
    if policy is None or incident.state is not IncidentState.OPEN or change.what not in ("opened", "step-ended"):
        return ""
    steps = policy.steps[incident.step + 1 :]
    if change.end is StepState.PROVED and change.action not in ("notify", "evidence"):
        again = f"; if it comes back: {steps[0].do}" if steps else ""
        return f"closed after {format_duration(policy.quiet)} of quiet{again}"
    if change.end is StepState.WOULD:
        return "nothing until the next finding"
    if not steps:
        return "nothing more; this is the last step"
    names = []
    for step in steps:
        names.append(f"{step.do} (after {format_duration(step.after)})" if step.after else step.do)
    return ", then ".join(names[:4])
