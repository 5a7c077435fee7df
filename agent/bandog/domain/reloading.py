"""A reload under open incidents: each finds its rung in the new ladder, and a stricter mode is obeyed."""

from __future__ import annotations

from .case import Case, Turn
from .ladder import Ladder
from .policy import Policy, allows


def replace_policy(case: Case, new: Policy | None, ladder: Ladder, turn: Turn) -> None:
    """Give `case` the new form of its policy; None means that the policy has gone."""
    old, case.policy = case.policy, new or case.policy
    case.orphan = new is None
    if case.incident.state.ended:
        return
    if new is not None and new is not old:
        _find_rung(case, old, new, ladder, turn)
    obey(case, ladder, turn)


def obey(case: Case, ladder: Ladder, turn: Turn) -> None:
    """Take back what the policy, as it is now, does not ask for; ask again where only `mode` differs."""
    if case.incident.state.ended:
        return
    if case.orphan:
        ladder.drop(case, "its policy has gone", turn, all_=True, again=True)
        return
    mode = case.policy.mode
    for asked in case.open_requests:
        if asked.request.mode != ("enforce" if allows(mode, asked.request.action) else "observe"):
            ladder.drop(case, "its mode has changed", turn, all_=False, again=True)
            if case.again:
                ladder.advance(case, turn)
            return


def _find_rung(case: Case, old: Policy, new: Policy, ladder: Ladder, turn: Turn) -> None:
    step = case.incident.step
    if not 0 <= step < len(old.steps):
        return
    do = old.steps[step].do
    nth = [other.do for other in old.steps[:step]].count(do)
    places = [index for index, other in enumerate(new.steps) if other.do == do]
    if nth < len(places):
        place = places[nth]
    else:
        ladder.drop(case, "its step has gone from the policy", turn, all_=True, again=False)
        place = min(step, len(new.steps) - 1) if case.busy else min(step, len(new.steps)) - 1
    if place != step:
        proved = place if case.incident.proved_step == step else case.incident.proved_step
        case.change(step=place, proved_step=proved)
        turn.note(case, "policy-changed", f"the ladder of {new.name} has changed")
