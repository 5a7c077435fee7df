"""What a unit's state says before a restart: whose it is, who moved it last, and what forbids touching it."""

from __future__ import annotations

import json
from datetime import timedelta

from bandog import Instant, Site, UnitState

# sd-messages.h SD_MESSAGE_UNIT_STOPPING: "a unit's stop job has begun". A process that ends by
# itself leaves no such entry.
_UNIT_STOPPING = "de5b426a63be47a7b6ac3eaac82e2f6f"
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
    manager's own journal entries tell the two apart. When they cannot be read, a person did it.
    """
    if unit.result != "success":
        return False
    outcome = site.child(
        [
            "journalctl",
            "--quiet",
            "--no-pager",
            "--boot",
            "--lines=1",
            "--output=json",
            "--output-fields=MESSAGE_ID",
            "_PID=1",
            f"UNIT={unit.name}",
            f"MESSAGE_ID={_UNIT_STOPPING}",
        ],
        deadline=_JOURNAL_CALL,
        limit=1 << 16,
    )
    if not outcome.ok or not unit.active_enter:
        return True
    stopped = _monotonic(outcome.out)
    if stopped is None:
        return bool(outcome.out.strip())
    return stopped >= unit.active_enter


def _monotonic(line: bytes) -> timedelta | None:
    try:
        return timedelta(microseconds=int(json.loads(line)["__MONOTONIC_TIMESTAMP"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
