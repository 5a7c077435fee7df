"""PID 1 as a worker thread sees it: the async client of the site, one bounded call after the other."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from bandog import JobOutcome, Site, SystemdError, UnitState

T = TypeVar("T")

# A property read takes 1 ms; a PID 1 that needs longer than this is not answering.
_CALL = timedelta(seconds=10)
# What the way over the loop may cost on top of the client's own deadline.
_SLACK = timedelta(seconds=5)


class Pid1:
    """Blocking calls to `site.systemd`. Each raises SystemdError, of kind `timeout` past its deadline."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def unit(self, name: str) -> UnitState:
        """Return the unit's state now."""
        return self._wait(self._site.systemd.unit(name), _CALL)

    def restart(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one RestartUnit job and wait at most `deadline` for its end."""
        return self._wait(self._site.systemd.restart(name, deadline=deadline), deadline + _SLACK)

    def start(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one StartUnit job and wait at most `deadline` for its end."""
        return self._wait(self._site.systemd.start(name, deadline=deadline), deadline + _SLACK)

    def stop(self, name: str, *, deadline: timedelta) -> JobOutcome:
        """Ask for one StopUnit job and wait at most `deadline` for its end."""
        return self._wait(self._site.systemd.stop(name, deadline=deadline), deadline + _SLACK)

    def reset_failed(self, name: str) -> None:
        """Clear the unit's start limit and failed state."""
        self._wait(self._site.systemd.reset_failed(name), _CALL)

    def unit_of_pid(self, pid: int) -> str | None:
        """Return the unit that holds a process, None when it has gone."""
        return self._wait(self._site.systemd.unit_of_pid(pid), _CALL)

    def _wait(self, work: Coroutine[Any, Any, T], deadline: timedelta) -> T:
        try:
            return self._site.wait(work, deadline=deadline)
        except TimeoutError as error:
            raise SystemdError("timeout", f"no answer within {deadline.total_seconds():g} s") from error
