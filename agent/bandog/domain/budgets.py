"""How often something disruptive may happen: limits, backoff, the breaker and the boot-loop guard.

The ledger is pure; the executor asks it before every act, charges it with the intent, and stores
charges and `export()`. All time goes through `Instant.since`, so that no wall clock can free a
budget: what cannot be proved to be past counts as now. Defaults are those of DESIGN section 7.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from .backoff import Backoff
from .codec import from_json, to_json
from .model import EMPTY, Instant, Request
from .policy import Rate

HOST = "host"
REBOOT = "reboot"
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_PER_HOST = Rate(count=20, per=_DAY)
_PER_SERVICE = Rate(count=5, per=_HOUR)
_RELAPSE = timedelta(minutes=30)
# From the charge to the kernel's first line a slow host takes minutes: memory training, firmware.
_REBOOT_TAKES = timedelta(minutes=60)
_MOST_SHADOWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is allowed. `actions` per service and action, `action` for those not named there."""

    host: Rate = _PER_HOST
    actions: Mapping[str, Rate] = field(default_factory=lambda: EMPTY)
    action: Rate = _PER_SERVICE
    fingerprint: tuple[Rate, ...] = (Rate(count=1, per=_DAY),)
    reboots: tuple[Rate, ...] = (Rate(count=1, per=6 * _HOUR), Rate(count=3, per=7 * _DAY))

    @classmethod
    def of(cls, budgets: Mapping[str, Rate]) -> Limits:
        """Build the limits from the main file's `budgets:`; what it leaves out keeps its default.

        `host` is the host's; `reboot` replaces the host's two reboot limits; any other name is an
        action's, per service.
        """
        limits = cls(actions={n: rate for n, rate in budgets.items() if n not in (HOST, REBOOT)})
        if HOST in budgets:
            limits = replace(limits, host=budgets[HOST])
        if REBOOT in budgets:
            limits = replace(limits, reboots=(budgets[REBOOT],))
        return limits

    def rates(self, key: str) -> tuple[Rate, ...]:
        """Return every limit that a charge under `key` counts against."""
        if key == HOST:
            return (self.host,)
        if key == REBOOT:
            return self.reboots
        head, _, rest = key.partition(":")
        if head in ("service", "unit"):
            return (self.actions.get(rest.rpartition(":")[2], self.action),)
        return self.fingerprint if head == "fingerprint" else ()

    @property
    def longest(self) -> timedelta:
        """How long a charge can matter."""
        rates = (self.host, self.action, *self.actions.values(), *self.fingerprint, *self.reboots)
        return max(rate.per for rate in rates)


class ChargeLike(Protocol):
    """A charge as the ledger or the store writes it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """What it counts against."""

    @property
    def at(self) -> Instant:
        """When it was charged."""

    @property
    def request(self) -> str:
        """The request that acted."""

    @property
    def shadow(self) -> bool:
        """True when it was only observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One disruptive act, counted under each of `keys`; `shadow` when it was only observed."""

    keys: tuple[str, ...]
    at: Instant
    request: str
    shadow: bool = False


class Allowance(enum.Enum):
    """What the ledger says to a request."""

    OK = "ok"
    WAIT = "wait"  # backoff: ask again at `until`
    EXHAUSTED = "exhausted"
    TRIPPED = "tripped"  # the breaker is open: observe only


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a request. `until` is when it may change, where that can be said; `first` is
    True once, when the breaker trips: store `export()` and tell people."""

    kind: Allowance
    until: Instant | None = None
    why: str = ""
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The breaker, or the end of automatic reboots: since when, by which request, why."""

    at: Instant
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much of one limit is used now."""

    key: str
    used: int
    limit: float
    per: timedelta


def fingerprint(kind: str, subject: str, facts: Mapping[str, Any]) -> str:
    """Return the key under which reboots for one fault are counted: kind, class, subject."""
    return f"fingerprint:{kind}/{facts.get('class', facts.get('xid', ''))}:{subject}"


def keys_of(request: Request, unit: str = "") -> tuple[str, ...]:
    """Return every key that a disruptive request is counted under.

    `unit` is the service's: under another name in the configuration it has no second budget.
    """
    keys = [HOST, f"step:{request.policy}:{request.step}:{request.action}"]
    keys.append(f"subject:{request.subject}:{request.action}")
    if request.service is not None:
        keys.append(f"service:{request.service}:{request.action}")
        if unit:
            keys.append(f"unit:{unit}:{request.action}")
    if request.action == REBOOT:
        keys += [REBOOT, fingerprint(request.kind, request.subject, request.facts)]
    return tuple(keys)


class Ledger:
    """All charges that may still count, the backoff of each unit, the breaker, the boot-loop guard.

    `unit_of` returns the unit of a service by name, "" for one that is not known any more.
    """

    def __init__(
        self,
        limits: Limits,
        charges: Iterable[ChargeLike] = (),
        state: Mapping[str, Any] = EMPTY,
        *,
        unit_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.limits = limits
        self._unit_of = unit_of
        if not isinstance(state, Mapping):
            state = {"breaker": "unreadable"}
        self._charges: dict[tuple[str, bool], Charge] = {}
        for one in charges:
            charge = Charge(keys=tuple(one.keys), at=one.at, request=one.request, shadow=one.shadow)
            self._charges[(charge.request, charge.shadow)] = charge
        self.breaker = _read_stop(state.get("breaker"))
        self.reboots_ended = _read_stop(state.get("reboots_ended"))
        forgiven = state.get("forgiven")
        self._forgiven = {str(name) for name in forgiven} if isinstance(forgiven, list) else set()
        self._backoff = Backoff(state.get("backoff"))

    def check(self, request: Request, now: Instant, *, shadow: bool = False) -> Verdict:
        """Say whether `request` may act now. Changes nothing but the breaker, when it trips.

        `shadow` asks on behalf of observe mode: shadow charges are counted apart and trip nothing.
        """
        if not shadow and self.breaker is not None:
            return Verdict(kind=Allowance.TRIPPED, why=self.breaker.why)
        if (request.id, shadow) in self._charges:
            return Verdict(kind=Allowance.OK, why="charged already")
        used_up = self._used_up(HOST, now, shadow)
        if used_up is not None:
            return used_up if shadow else self._trip(request, used_up, now)
        if request.action == REBOOT:
            self.fault_seen(request.kind, request.subject, request.facts, request.found_at, by=request.id)
            if self.reboots_ended is not None:
                return Verdict(kind=Allowance.EXHAUSTED, why=self.reboots_ended.why)
        for key in self._keys(request):
            used_up = self._used_up(key, now, shadow)
            if used_up is not None:
                return used_up
        if request.service is not None and not shadow:
            left = self._backoff.left(self._paced(request.service), now)
            if left > timedelta(0):
                why = f"{request.service} was acted on a short while ago"
                return Verdict(kind=Allowance.WAIT, until=now.plus(left), why=why)
        return Verdict(kind=Allowance.OK)

    def charge(self, request: Request, now: Instant, *, shadow: bool = False) -> Charge:
        """Count `request`; store the charge with the intent, before the act. Twice is once."""
        known = self._charges.get((request.id, shadow))
        if known is not None:
            return known
        charge = Charge(keys=self._keys(request), at=now, request=request.id, shadow=shadow)
        self._charges[(request.id, shadow)] = charge
        if request.service is not None and not shadow:
            self._backoff.acted(self._paced(request.service), now)
        self._prune(now)
        return charge

    def healthy(self, service: str, now: Instant) -> None:
        """A service was seen to serve: from here to the next charge its backoff shrinks."""
        self._backoff.healthy(self._paced(service), now)

    def fault_seen(self, kind: str, subject: str, facts: Mapping[str, Any], at: Instant, *, by: str = "") -> bool:
        """A fault was found: if it is one that we rebooted for and the boot is less than 30 min old,
        automatic reboots end. Returns True when that is news: store `export()` and tell people."""
        if self.reboots_ended is not None or at.boottime > _RELAPSE or facts.get("glued"):
            return False
        key = fingerprint(kind, subject, facts)
        for charge in self._charges.values():
            if charge.shadow or key not in charge.keys or charge.request in self._forgiven:
                continue
            if charge.at.boot_id != at.boot_id and at.since(charge.at) <= _RELAPSE + _REBOOT_TAKES:
                why = f"{kind} on {subject} came back after a reboot of ours; no more automatic reboots"
                self.reboots_ended = Stop(at=at, by=by or charge.request, why=why)
                return True
        return False

    def rearm(self) -> bool:
        """Close the breaker, allow automatic reboots again, and give the host a fresh budget.

        Returns False if there was nothing to re-arm.
        """
        if self.breaker is None and self.reboots_ended is None:
            return False
        self._forgiven = {charge.request for charge in self._charges.values() if not charge.shadow}
        self.breaker = self.reboots_ended = None
        return True

    def usage(self, now: Instant, *, shadow: bool = False) -> tuple[Usage, ...]:
        """Return what is used of each limit: the host's first, then by key; a unit stands under its service."""
        keys = {key for c in self._charges.values() if c.shadow is shadow for key in c.keys} - {HOST}
        keys = {key for key in keys if not key.startswith("unit:")}
        found = []
        for key in (HOST, *sorted(keys)):
            for rate in self.limits.rates(key):
                used = len(self._counting(key, rate, now, shadow))
                if used or key == HOST:
                    found.append(Usage(key=key, used=used, limit=rate.count, per=rate.per))
        return tuple(found)

    def export(self) -> dict[str, Any]:
        """Return breaker, boot-loop guard and backoff as JSON for the store (charges are rows)."""
        return {
            "breaker": to_json(self.breaker),
            "reboots_ended": to_json(self.reboots_ended),
            "forgiven": sorted(self._forgiven),
            "backoff": self._backoff.export(),
        }

    # --- inside ----------------------------------------------------------------------------------

    def _keys(self, request: Request) -> tuple[str, ...]:
        return keys_of(request, self._unit_of(request.service) if request.service is not None else "")

    def _paced(self, service: str) -> str:
        return self._unit_of(service) or service

    def _counting(self, key: str, rate: Rate, now: Instant, shadow: bool) -> list[timedelta]:
        """Return the provable ages of the charges that count against `rate`, oldest first."""
        ages = [
            now.since(charge.at)
            for charge in self._charges.values()
            if charge.shadow is shadow and key in charge.keys and not (key == HOST and charge.request in self._forgiven)
        ]
        return sorted((age for age in ages if age < rate.per), reverse=True)

    def _used_up(self, key: str, now: Instant, shadow: bool) -> Verdict | None:
        for rate in self.limits.rates(key):
            ages = self._counting(key, rate, now, shadow)
            if len(ages) >= rate.count:
                free = len(ages) - max(int(rate.count), 1)
                until = now.plus(rate.per - ages[free]) if ages and rate.count >= 1 else None
                why = f"the budget of {rate} for {_words(key)} is used up"
                return Verdict(kind=Allowance.EXHAUSTED, until=until, why=why)
        return None

    def _trip(self, request: Request, used_up: Verdict, now: Instant) -> Verdict:
        why = f"{used_up.why}; bandog only observes until `bandog rearm`"
        self.breaker = Stop(at=now, by=request.id, why=why)
        return Verdict(kind=Allowance.TRIPPED, why=why, first=True)

    def _prune(self, now: Instant) -> None:
        longest = self.limits.longest
        past = {key for key, charge in self._charges.items() if now.since(charge.at) >= longest}
        shadows = [key for key in self._charges if key[1] and key not in past]
        for key in (*past, *shadows[:-_MOST_SHADOWS]):
            del self._charges[key]
        self._forgiven.intersection_update(request for request, _ in self._charges)
        self._backoff.prune(now)


def _words(key: str) -> str:
    if key == HOST:
        return "this host"
    if key == REBOOT:
        return "reboots of this host"
    head, _, rest = key.partition(":")
    if head in ("service", "unit"):
        name, _, action = rest.rpartition(":")
        return f"{action} of {name}"
    return "reboots for this fault" if head == "fingerprint" else key


def _read_stop(data: Any) -> Stop | None:
    """What cannot be read stays in force: that something stood there says that something was wrong."""
    if data is None:
        return None
    try:
        return from_json(Stop, data)
    except (TypeError, ValueError, KeyError, OverflowError):
        at = Instant(boot_id="", boottime=timedelta(0), utc=datetime.fromtimestamp(0, UTC))
        return Stop(at=at, by="", why="the stored state of the budgets cannot be read")
