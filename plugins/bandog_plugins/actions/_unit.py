"""What a unit's state says before a restart: whose it is, who moved it last, and what forbids touching it."""

from __future__ import annotations

import json
from datetime import timedelta

from bandog import Instant, Site, UnitState

# sd-messages.h SD_MESSAGE_UNIT_STOPPING: a stop job has begun. A process that ends by itself leaves none.
_UNIT_STOPPING = "de5b426a63be47a7b6ac3eaac82e2f6f"
# SD_MESSAGE_UNIT_SUCCESS: the unit has become inactive, by whatever way.
_UNIT_SUCCESS = "7ad2d189f7e94e70a38c781354912448"
_JOURNAL_CALL = timedelta(seconds=10)
_BEYOND_REACH = {
    "not-found": "does not exist",
    "masked": "is masked",
    "error": "cannot be loaded",
    "bad-setting": "has a setting that systemd refuses",
}


def activated_since(unit: UnitState, moment: Instant, site: Site) -> bool:
    """True when the unit became active after `moment`; also across boots."""
    if not unit.active_enter:
        return False
    entered = site.clock.at_kernel_time(unit.active_enter // timedelta(microseconds=1))
    return entered.since(moment) > timedelta()


def restarted_by_manager(unit: UnitState, found_at: Instant, site: Site) -> bool:
    """True when systemd has activated the unit since the finding, or is about to by its `Restart=`."""
    if unit.active_state == "activating" and unit.sub_state.startswith("auto-restart"):
        return True
    return unit.active_state in ("active", "reloading") and activated_since(unit, found_at, site)


def refusal(unit: UnitState, site: Site) -> str | None:
    """Return why a restart must leave this unit alone, or None."""
    if unit.load_state in _BEYOND_REACH:
        return f"{unit.name} {_BEYOND_REACH[unit.load_state]}"
    if unit.load_state == "loaded" and unit.need_daemon_reload:
        return f"{unit.name} was edited: its files differ from what systemd has loaded"
    if unit.active_state == "inactive" and unit.job is None and stopped_by_person(unit, site):
        return f"{unit.name} was stopped by a person"
    return None


def stopped_by_person(unit: UnitState, site: Site) -> bool:
    """True unless the journal shows that an inactive unit ended by itself, without a stop job.

    A server that exits with 0 after a GPU fault looks to systemd like one that was stopped; the
    manager's own journal entries tell the two apart. It takes the entry of the end to believe that
    there was none of a stop job: `LogLevelMax=` or a lost journal hides both, and then a person did it.
    """
    if unit.result != "success":
        return False
    outcome = site.child(
        [
            "journalctl",
            "--quiet",
            "--no-pager",
            "--boot",
            "--lines=8",
            "--output=json",
            "--output-fields=MESSAGE_ID",
            "_PID=1",
            f"UNIT={unit.name}",
            f"MESSAGE_ID={_UNIT_STOPPING}",
            f"MESSAGE_ID={_UNIT_SUCCESS}",
        ],
        deadline=_JOURNAL_CALL,
        limit=1 << 16,
    )
    if not outcome.ok or not unit.active_enter:
        return True
    told = _told_since(outcome.out, unit.active_enter)
    return _UNIT_SUCCESS not in told or _UNIT_STOPPING in told


def _told_since(lines: bytes, moment: timedelta) -> set[str]:
    """Return the message ids of the journal entries at or after `moment` of CLOCK_MONOTONIC."""
    found = set()
    for line in lines.splitlines():
        try:
            entry = json.loads(line)
            if timedelta(microseconds=int(entry["__MONOTONIC_TIMESTAMP"])) >= moment:
                found.add(str(entry["MESSAGE_ID"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            # An entry that cannot be read may be one of a stop job.
            found.add(_UNIT_STOPPING)
    return found
