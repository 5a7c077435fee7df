"""Why a finding would, or would not, lead to each step of its policy's ladder.

This is the engine's and the executor's judgement put in words for one finding by itself: nothing is
counted, coalesced or inhibited, and what only the living daemon knows (budgets, holds, processes) is
left out. `replay` runs the real engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .changes import ActionTraits
from .counting import weight_of
from .model import Finding
from .policy import Policy, Step, allows, format_duration

Mode = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurt:
    """A service that the finding hurts, and its own `mode:`."""

    name: str
    mode: Mode = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What of the configuration decides: the actions loaded, the host's mode, who can be told."""

    actions: Mapping[str, ActionTraits]
    mode: Mode = "observe"
    targets: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One rung as it would go: `would` is whether it would act if the line were live."""

    do: str
    would: bool
    why: str


def explain(finding: Finding, policy: Policy | None, setting: Setting, hurt: Sequence[Hurt]) -> tuple[StepView, ...]:
    """Return each step of `policy` with whether it would act for `finding`, and why."""
    if policy is None:
        return ()
    refusal = _refusal(finding, policy)
    views = []
    waits_for: str | None = None  # the step before, whose proof would end the climb
    for step in policy.steps:
        view = (
            StepView(do=step.do, would=False, why=refusal) if refusal else _step(step, policy, setting, hurt, finding)
        )
        if view.would:
            conditions = [*_conditions(step, finding), view.why]
            if waits_for is not None:
                conditions.insert(0, f"if {waits_for} does not help, or the fault is back within {_quiet(policy)}")
            view = StepView(do=view.do, would=True, why="; ".join(one for one in conditions if one))
            traits = setting.actions[step.do]
            waits_for = step.do if traits.proves else waits_for
        views.append(view)
    return tuple(views)


def _quiet(policy: Policy) -> str:
    return format_duration(policy.quiet)


def _refusal(finding: Finding, policy: Policy) -> str:
    """Return why no step at all would begin, or ""."""
    if not finding.raised:
        return "the fault has cleared: that ends incidents and begins nothing"
    if finding.facts.get("glued"):
        return "the text does not stand at the start of its record and may be forged: never a step"
    rate = policy.match.count
    if rate is not None and rate.count > weight_of(finding):
        has = weight_of(finding)
        return f"needs {rate.count:g} within {format_duration(rate.per)}; this is {has:g}"
    return ""


def _step(step: Step, policy: Policy, setting: Setting, hurt: Sequence[Hurt], finding: Finding) -> StepView:
    traits = setting.actions.get(step.do)
    if traits is None:
        return StepView(do=step.do, would=False, why="not loaded on this host (bandog plugins says why)")
    if traits.per_service and not hurt:
        return StepView(do=step.do, would=False, why=_nobody(finding))
    if not traits.disruptive:
        return _mild(step, setting)
    held = _held(step, policy, setting, hurt if traits.per_service else ())
    if held:
        return StepView(do=step.do, would=False, why=held)
    names = ", ".join(one.name for one in hurt) if traits.per_service else ""
    return StepView(do=step.do, would=True, why=f"acts on {names}" if names else "acts")


def _nobody(finding: Finding) -> str:
    if finding.facts.get("pid"):
        return "no service of ours is known to use it; the living daemon would ask whose process the pid is"
    return "no service of ours uses it"


def _mild(step: Step, setting: Setting) -> StepView:
    """A step that disrupts nothing runs in every mode; telling needs somebody to tell."""
    named = step.with_.get("to")
    if not isinstance(named, list | tuple) or not named:
        return StepView(do=step.do, would=True, why="disrupts nothing, so it runs in every mode")
    known = [str(one) for one in named if one in setting.targets]
    if not known:
        missing = ", ".join(str(one) for one in named)
        return StepView(do=step.do, would=False, why=f"notify: names nobody called {missing} yet")
    return StepView(do=step.do, would=True, why=f"tells {', '.join(known)}")


def _held(step: Step, policy: Policy, setting: Setting, hurt: Sequence[Hurt]) -> str:
    """Return whose mode forbids the action, or "". The strictest of all wins."""
    if not allows(setting.mode, step.do):
        return f"mode is {_mode(setting.mode)}: it would only be told as something that bandog would have done"
    if not allows(policy.mode, step.do):
        return f"the policy's own mode is {_mode(policy.mode)}"
    strict = [one for one in hurt if not allows(one.mode, step.do)]
    if hurt and len(strict) == len(hurt):
        return "; ".join(f"the mode of service {one.name} is {_mode(one.mode)}" for one in strict)
    return ""


def _mode(mode: Mode) -> str:
    return "[" + ", ".join(mode) + "]" if isinstance(mode, tuple) else str(mode)


def _conditions(step: Step, finding: Finding) -> Iterator[str]:
    if finding.companion:
        yield "only if no other fault of the same subject stands within 5 s, which it would join"
    if step.after is not None:
        yield f"not before {format_duration(step.after)} have passed, and only while the fault is still there"
    if step.with_.get("when") == "window":
        yield "in the next window"
    if step.limit is not None:
        yield f"at most {step.limit}"
