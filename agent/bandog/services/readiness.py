"""Asks a service once whether it serves: http, tcp, command or unit, each with an end.

Refused means that nobody listens: not ready. A time-out says nothing: unknown, which neither proves
nor condemns (a busy server is no dead server).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ..host.site import CanaryAnswer, ChildOutcome, HttpReply, Readiness, Site
from ..host.systemd_types import SystemdError
from ..host.tcp import TcpProbe
from .canary import DEADLINE, NoKey, ask
from .registry import Ready, Registry, Service

_HTTP = timedelta(seconds=5)
_TCP = timedelta(seconds=3)
_COMMAND = timedelta(seconds=10)
_UNIT = timedelta(seconds=5)
_BODY = 4096


def no_key(name: str) -> str:
    """Have no credentials at all."""
    raise NoKey("no credentials can be read here")


class ServiceBook:
    """The operator's services and what can be asked of them; implements `host.site.Services`.

    `key` returns the API key of a credential's name for canaries, or raises NoKey.
    """

    def __init__(self, registry: Registry, means: Site, key: Callable[[str], str] = no_key) -> None:
        self._registry = registry
        self._means = means
        self._key = key
        self._tcp = TcpProbe()

    def replace(self, registry: Registry) -> None:
        """Take the services of a reload."""
        self._registry = registry

    @property
    def registry(self) -> Registry:
        """The services as they are now."""
        return self._registry

    def names(self) -> tuple[str, ...]:
        """Return every service's name, in start order."""
        return tuple(service.name for service in self._registry)

    def get(self, name: str) -> Service:
        """Return the service; KeyError if unknown."""
        return self._registry.get(name)

    def ready(self, name: str) -> Readiness:
        """Ask once; KeyError if the service is unknown. At most 10 s, for worker threads."""
        return check(self._registry.get(name), self._means, self._tcp)

    def canary(self, name: str, *, deadline: timedelta = DEADLINE) -> CanaryAnswer:
        """Ask its model for one short completion; KeyError if the service is unknown. For worker threads."""
        service = self._registry.get(name)
        if not service.canary:
            return CanaryAnswer(ok=None, why="no canary is configured")
        return ask(service.canary, self._means, self._key, deadline=deadline)

    def serves(self, name: str, *, deadline: timedelta = DEADLINE) -> Readiness:
        """Ask `ready`, then the canary if there is one; at most 10 s and `deadline`, for worker threads.

        A canary that learnt nothing leaves it unknown: readiness alone does not prove that tokens come.
        """
        ready = self.ready(name)
        if ready.ready is not True or not self._registry.get(name).canary:
            return ready
        answer = self.canary(name, deadline=deadline)
        return Readiness(ready=answer.ok, why=f"{ready.why}; canary: {answer.why}")


def check(service: Service, means: Site, tcp: TcpProbe) -> Readiness:
    """Ask `service` by its `ready:`; the first way that it names counts."""
    ready = service.ready
    if ready.http is not None:
        return by_http(means.http("GET", ready.http, deadline=_HTTP, limit=_BODY))
    if ready.tcp is not None:
        return by_tcp(ready.tcp, tcp)
    if ready.command is not None:
        return by_command(means.child(ready.command, deadline=_COMMAND, limit=_BODY), ready)
    return by_unit(service.unit, means)


def by_http(reply: HttpReply) -> Readiness:
    """2xx is ready; 429 too, because a server that sheds load serves. An answer for others is unknown."""
    if reply.error == "refused":
        return Readiness(ready=False, why="connection refused")
    if reply.status is None:
        return Readiness(ready=None, why=reply.error or "no answer")
    if reply.ok:
        return Readiness(ready=True, why=f"HTTP {reply.status}")
    if reply.status == 429:
        return Readiness(ready=True, why="HTTP 429: it sheds load")
    if reply.status in (401, 403):
        return Readiness(ready=None, why=f"HTTP {reply.status}: `ready: http` needs a URL without a key")
    if 300 <= reply.status < 400:
        return Readiness(ready=None, why=f"HTTP {reply.status}: redirects are not followed")
    return Readiness(ready=False, why=f"HTTP {reply.status}")


def by_tcp(place: str, tcp: TcpProbe) -> Readiness:
    """Connected is ready, refused is not, anything else is unknown. `place` is `host:port`."""
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        return Readiness(ready=None, why=f"{place} is no host:port")
    error = tcp.open(host.strip("[]") or "localhost", int(port), deadline=_TCP)
    if error is None:
        return Readiness(ready=True, why="connected")
    if error == "refused":
        return Readiness(ready=False, why="connection refused")
    return Readiness(ready=None, why=error)


def by_command(outcome: ChildOutcome, ready: Ready) -> Readiness:
    """Status 0 is ready; a command that was given up, killed or cannot be run is unknown."""
    name = (ready.command or ("",))[0]
    if outcome.timed_out or outcome.stuck or outcome.code is None:
        return Readiness(ready=None, why=f"{name} did not end in time")
    if outcome.code == 0:
        return Readiness(ready=True, why=f"{name} ended with 0")
    if outcome.code < 0 or outcome.code in (126, 127):  # sh(1): cannot be executed, not found
        return Readiness(ready=None, why=f"{name} could not tell (status {outcome.code})")
    return Readiness(ready=False, why=f"{name} ended with {outcome.code}")


def by_unit(unit: str, means: Site) -> Readiness:
    """Active is ready; no answer of PID 1 is unknown. For a `Type=simple` unit active is only forked."""
    try:
        state = means.wait(means.systemd.unit(unit), deadline=_UNIT)
    except (SystemdError, TimeoutError) as error:
        return Readiness(ready=None, why=f"systemd did not answer: {error}")
    return Readiness(ready=state.active_state == "active", why=f"unit is {state.active_state} ({state.sub_state})")
