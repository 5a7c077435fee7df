"""The texts that people get: what was seen, what was done, what comes next, how to stop it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..domain.changes import IncidentChanged
from ..domain.model import EMPTY, Incident, IncidentState, Instant, Severity, StepState
from ..domain.policy import Policy, format_duration
from ..domain.subjects import type_of
from .wording import PAPERS, card_lines, kind_words, plain, subject_words

MAX_TITLE = 180
MAX_TEXT = 1500
EXERCISE = "[DRILL] This is an exercise, not a fault."
_FACTS = 14
_DID = {"restart": "restarted", "reboot": "rebooted", "relaunch": "relaunched"}
_ON_CARDS = ("relaunch", "reset-gpu")


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


def thread_of(incident: Incident, host: str) -> str:
    """Return the message id that all mails of an incident refer to; it stays the same over restarts."""
    return f"<incident-{incident.id}.{incident.opened.boot_id[:8]}@{_label(host)}.bandog>"


def _label(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", host) or "localhost"


def title_of(incident: Incident, host: str) -> str:
    """Return the title of an incident's thread: `[gpu07] #12 error: Xid 94 on gpu 0000:e5:00.0 (qwen)`."""
    drill = "[DRILL] " if incident.drill else ""
    services = f" ({_services(incident)})" if incident.services else ""
    about = f"{incident.severity.value}: {kind_words(incident.kind, incident.facts)}"
    return f"{drill}[{plain(host, 40)}] #{incident.id} {about} on {subject_words(incident.subject)}{services}"[
        :MAX_TITLE
    ]


def _services(incident: Incident) -> str:
    return ", ".join(plain(name, 40) for name in incident.services[:3])


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
        text = f"{EXERCISE}\n{text}"
    return text[:MAX_TEXT]


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


# --- the sentences ---------------------------------------------------------------------------------


def _headline(change: IncidentChanged) -> str:
    incident, why = change.incident, plain(change.why, 500)
    told = f": {why}" if why else ""
    match change.what:
        case "opened":
            return f"Seen: {kind_words(incident.kind, incident.facts)} on {subject_words(incident.subject)}"
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
    services = _services(change.incident)
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
        verb = _DID.get(change.action or "", f"run {change.action or 'the step'}")
        text = f"would have {verb} {_services(change.incident) or 'nothing: no service is known'}".strip()
    return text if "observe" in text else f"{text} (mode: observe)"


def _seen(incident: Incident, change: IncidentChanged) -> list[str]:
    facts = dict(change.finding.facts if change.finding is not None else incident.facts)
    lines = []
    text = facts.pop("text", None)
    if text is not None:
        lines.append(f"Line: {plain(text, 300)}")
    lines += card_lines(incident.subject, facts)
    for name in (*PAPERS, "history") if type_of(incident.subject) == "gpu" else ():
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
