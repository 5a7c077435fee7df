"""`evidence`: what the host looked like when it went wrong, kept before anything disruptive changes it.

It takes 30 s at most and fails at nothing: a piece that cannot be had is named in the bundle, and a
disk that cannot be written gives a bundle in /run, or a sentence. Unit logs may hold what users
typed, so a bundle stays on this host and its text goes into no message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

from bandog import Action, Duration, Options, Request, Result, Site, SystemdError, hookimpl, subjects

from . import _bundle, _pieces

_TIME = timedelta(seconds=30)
_SAFE_UNIT = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*\.(service|scope)\Z")
_MOST_UNITS = 4


class EvidenceOptions(Options):
    """Sizes in bytes: `max_piece` of one file, `max_each` of one bundle, `max_total` of all; `keep` is their age."""

    max_piece: int = 1 << 20
    max_each: int = 32 << 20
    max_total: int = 1 << 30
    keep: Duration = timedelta(days=90)


class Evidence(Action):
    """Collect a bundle; see the module."""

    name = "evidence"
    Options = EvidenceOptions
    disruptive = False
    proves = False
    run_deadline = _TIME + timedelta(seconds=15)

    options: EvidenceOptions

    def run(self, request: Request, site: Site) -> Result:
        """Collect what can be had in time and say where it lies."""
        began = site.clock.now()
        try:
            bundle = self._begin(request, site)
        except OSError as error:
            return Result.done(f"no evidence could be kept: {error.strerror}", skipped={"bundle": str(error.strerror)})
        for piece in _pieces.pieces(request, site, _units(request, site)):
            left = _TIME - site.clock.now().since(began)
            if left <= timedelta():
                bundle.skip(piece.name, "no time was left")
                continue
            try:
                data = piece.take(min(piece.deadline, left), self.options.max_piece)
            except _pieces.Missing as missing:
                bundle.skip(piece.name, str(missing))
            except OSError as error:
                bundle.skip(piece.name, f"cannot be read: {error.strerror}")
            else:
                bundle.add(piece.name, data[-self.options.max_piece :])
        return self._finish(bundle, site)

    def _begin(self, request: Request, site: Site) -> _bundle.Bundle:
        """Make the bundle in the state directory, or in /run where that cannot be written."""
        at = site.clock.now().utc
        try:
            folder = site.evidence_dir(request.incident)
            return _bundle.Bundle.begin(folder, at=at, request=request.id, room=self.options.max_each)
        except OSError:
            folder = site.paths.run / "evidence" / str(request.incident)
            return _bundle.Bundle.begin(folder, at=at, request=request.id, room=self.options.max_each)

    def _finish(self, bundle: _bundle.Bundle, site: Site) -> Result:
        try:
            place = bundle.finish()
        except OSError as error:
            return Result.done(f"the evidence could not be completed: {error.strerror}", skipped=bundle.skipped)
        limits = self.options
        _bundle.rotate(bundle.folder.parent, max_total=limits.max_total, keep=limits.keep, now=site.clock.now().utc)
        lacking = f"; {len(bundle.skipped)} not there, see SKIPPED.txt" if bundle.skipped else ""
        return Result.done(
            f"evidence in {place} ({len(bundle.pieces)} pieces{lacking})",
            path=str(place),
            pieces=list(bundle.pieces),
            skipped=dict(bundle.skipped),
        )


def _units(request: Request, site: Site) -> list[str]:
    """Return the units that the finding hurts, as far as it tells; all of ours when it does not."""
    services = [site.services.get(name) for name in site.services.names()]
    named = [one.unit for one in services if one.name == request.service]
    named += [str(value) for name, value in request.facts.items() if name == "unit"]
    pid = request.facts.get("pid")
    if isinstance(pid, int):
        named += _unit_of(pid, site)
    if subjects.type_of(request.subject) == "gpu":
        address = subjects.id_of(request.subject)
        named += [one.unit for one in services if one.gpus == "all" or address in one.gpus]
    units = named or [one.unit for one in services]
    return [unit for unit in dict.fromkeys(units) if _SAFE_UNIT.match(unit)][:_MOST_UNITS]


def _unit_of(pid: int, site: Site) -> list[str]:
    try:
        unit = site.wait(site.systemd.unit_of_pid(pid), deadline=timedelta(seconds=3))
    except (SystemdError, TimeoutError):
        return []
    return [unit] if unit else []


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(Evidence)
