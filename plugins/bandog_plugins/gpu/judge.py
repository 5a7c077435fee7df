"""What a look at the GPUs means: the findings that are raised now, and what cannot be told.

One look is proof where the driver states a lasting condition of its own (lost, recovery action, rows, ECC counter).
It is none where a condition comes and goes by itself: a card must be missing and a link degraded in three looks in
a row, and clocks throttled in three looks over two minutes at least; throttling has ended after three looks without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from bandog import Fact, Facts, Finding, GpuLook, Instant, KnownGpu, Look, Severity, Unknown, subjects

_CARD: Facts = {"uuid": str, "serial": str, "part_number": str, "name": str}
EMITS: Mapping[str, Facts] = {
    "gpu.missing": {**_CARD, "expected": int, "seen": int},
    "gpu.lost": {**_CARD, "reason": str, "text": str},
    "gpu.recovery-needed": {**_CARD, "recovery": str},
    "gpu.row-remap-pending": {**_CARD, "remapped": int},
    "gpu.row-remap-failed": {**_CARD, "remapped": int, "pending": bool},
    "gpu.ecc-uncorrected": {**_CARD, "count": int, "total": int, "corrected": int},
    "gpu.throttled": {
        **_CARD,
        "reasons": tuple,
        "seconds": int,
        "temperature": int,
        "power": int,
        "power_limit": int,
        "sm_clock": int,
    },
    "gpu.link-degraded": {
        **_CARD,
        "what": tuple,
        "width": int,
        "width_max": int,
        "generation": int,
        "generation_max": int,
        "links_up": int,
        "links_down": tuple,
    },
    "gpu.driver-hung": {"seconds": int, "stuck": bool, "text": str},
    "gpu.driver-mismatch": {"driver": str, "library": str, "answers": bool},
}
OF_A_CARD = tuple(kind for kind in EMITS if not kind.startswith("gpu.driver-"))
LOOKS = 3
THROTTLED_FOR = timedelta(minutes=2)
THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""A cap on power or a lower clock that somebody set is no fault."""
LOADED = 50
"""Percent of utilisation from which a link's generation counts: an idle GPU lowers it to save power."""


@dataclass(slots=True)
class _Streak:
    """How long something has been true without a break, and how long it has been false since."""

    first: Instant
    looks: int = 1
    lasts: bool = False
    calm: int = 0


@dataclass(slots=True)
class _Past:
    """What is remembered of one address between looks."""

    uuid: str = ""
    ecc: int | None = None
    up: set[int] = field(default_factory=set)
    streaks: dict[str, _Streak] = field(default_factory=dict)


class _State(Protocol):
    """Turns what is true of one GPU into what is told: a finding, nothing, or Unknown where `raised` is None."""

    def __call__(
        self, kind: str, severity: Severity, raised: bool | None, **facts: Fact | None
    ) -> Finding | Unknown | None: ...


class Judge:
    """Follows the looks of one run of the agent. No I/O and no clock: the time is that of the looks."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}
        self._missing: dict[str, _Streak] = {}

    def take(self, look: Look, known: Iterable[KnownGpu]) -> list[Finding | Unknown]:
        """Return the whole truth after `look`; `known` are the cards of the inventory, that look included."""
        found = [*self._driver(look)]
        if look.error:
            return [*found, *(Unknown(kind=kind, why=look.error) for kind in OF_A_CARD)]
        cards = {one.uuid: one for one in known}
        for gpu in look.gpus:
            card = cards.get(gpu.uuid) or next(
                (one for one in cards.values() if one.slot == gpu.address and one.expected), None
            )
            found += self._gpu(gpu, card, look)
        return [*found, *self._absent(look, [one for one in cards.values() if one.expected])]

    # --- the driver ------------------------------------------------------------------------------

    @staticmethod
    def _driver(look: Look) -> Iterator[Finding | Unknown]:
        if look.hung:
            seconds, stuck = look.extra.get("seconds", 0), bool(look.extra.get("stuck", False))
            text = "a program that asked it cannot even be killed" if stuck else ""
            facts: dict[str, Fact] = {"seconds": seconds, "stuck": stuck, "text": text}
            yield _finding("gpu.driver-hung", subjects.HOST, Severity.CRITICAL, look, facts)
        elif look.error and not look.mismatch:
            yield Unknown(kind="gpu.driver-hung", why=look.error)
        if look.mismatch:
            answers = not look.error
            yield _finding(
                "gpu.driver-mismatch",
                subjects.HOST,
                Severity.WARNING if answers else Severity.ERROR,
                look,
                {"driver": look.driver, "library": look.library, "answers": answers},
            )
        elif look.error:
            yield Unknown(kind="gpu.driver-mismatch", why=look.error)

    # --- a card that is there --------------------------------------------------------------------

    def _gpu(self, gpu: GpuLook, card: KnownGpu | None, look: Look) -> Iterator[Finding | Unknown]:
        past = self._past.get(gpu.address)
        if past is None or (gpu.uuid and past.uuid not in ("", gpu.uuid)):
            past = self._past[gpu.address] = _Past()
        past.uuid = gpu.uuid or past.uuid
        subject, papers = subjects.gpu(gpu.address), _papers(gpu, card)

        def state(kind: str, severity: Severity, raised: bool | None, **facts: Fact | None) -> Finding | Unknown | None:
            if raised is None:
                return Unknown(kind=kind, subject=subject, why="; ".join(sorted(set(gpu.errors.values())))[:200])
            if not raised:
                return None
            return _finding(kind, subject, severity, look, {**papers, **facts})

        if gpu.lost:
            text = next(iter(gpu.errors.values()), "")
            lost = state("gpu.lost", Severity.CRITICAL, True, reason="gpu-is-lost", text=text)
            told = [lost, *(Unknown(kind=kind, subject=subject, why="it is lost") for kind in OF_A_CARD[2:])]
        else:
            told = [
                None if gpu.uuid else state("gpu.lost", Severity.CRITICAL, None),
                self._recovery(gpu, state),
                state("gpu.row-remap-pending", Severity.WARNING, gpu.remap_pending, remapped=gpu.remapped),
                state(
                    "gpu.row-remap-failed",
                    Severity.ERROR,
                    gpu.remap_failed,
                    remapped=gpu.remapped,
                    pending=gpu.remap_pending,
                ),
                self._ecc(gpu, past, subject, papers, look),
                self._throttled(gpu, past, state, look.at),
                self._links(gpu, past, state, look),
            ]
        yield from (one for one in told if one is not None)

    @staticmethod
    def _recovery(gpu: GpuLook, state: _State) -> Finding | Unknown | None:
        raised = None if gpu.recovery is None else gpu.recovery != "none"
        return state("gpu.recovery-needed", Severity.ERROR, raised, recovery=gpu.recovery)

    @staticmethod
    def _ecc(
        gpu: GpuLook, past: _Past, subject: str, papers: Mapping[str, Fact], look: Look
    ) -> Finding | Unknown | None:
        """The counter begins at zero when the driver is loaded or the GPU reset, so any number is of this boot.

        The aspect is the total, so that a further error is news and the end of the counter clears all of it.
        """
        kind, total = "gpu.ecc-uncorrected", gpu.ecc_uncorrected
        if total is None:
            return Unknown(kind=kind, subject=subject, why="the counter cannot be read")
        grown = total - past.ecc if past.ecc is not None and total >= past.ecc else total
        past.ecc = total
        if total <= 0:
            return None
        facts = {**papers, "total": total, "corrected": gpu.ecc_corrected, "count": grown or None}
        return _finding(kind, subject, Severity.ERROR, look, facts, aspect=str(total))

    @staticmethod
    def _throttled(gpu: GpuLook, past: _Past, state: _State, at: Instant) -> Finding | Unknown | None:
        reasons = tuple(one for one in THROTTLES if one in gpu.throttle)
        now: bool | None = bool(reasons) and "gpu_idle" not in gpu.throttle
        if "nvmlDeviceGetCurrentClocksEventReasons" in gpu.errors:
            now = None
        lasts, since = _lasts(past.streaks, "throttled", now, at, for_=THROTTLED_FOR, calm=LOOKS)
        return state(
            "gpu.throttled",
            Severity.WARNING,
            lasts,
            reasons=reasons or None,
            seconds=int(since.total_seconds()),
            temperature=gpu.temperature,
            power=None if gpu.power is None else round(gpu.power),
            power_limit=None if gpu.power_limit is None else round(gpu.power_limit),
            sm_clock=gpu.sm_clock,
        )

    @staticmethod
    def _links(gpu: GpuLook, past: _Past, state: _State, look: Look) -> Finding | Unknown | None:
        """Degraded if anything is, in three looks running; well only if nothing that was seen to be bad is not."""
        down = _links_down(gpu, past, look)
        now = {
            "pcie-width": _below(gpu.pcie_width, gpu.pcie_width_max),
            "pcie-generation": _below(gpu.pcie_generation, gpu.pcie_generation_max),
            "nvlink": None if down is None else bool(down),
        }
        if now["pcie-generation"] and (gpu.util is None or gpu.util < LOADED):
            now["pcie-generation"] = None
        was = [name for name in now if name in past.streaks and past.streaks[name].lasts]
        last = {name: _lasts(past.streaks, name, value, look.at)[0] for name, value in now.items()}
        bad = tuple(name for name, lasts in last.items() if lasts)
        raised: bool | None = True
        if not bad:
            open_ = [last[name] is None for name in (was or now)]
            raised = None if any(open_) else False
        return state(
            "gpu.link-degraded",
            Severity.WARNING,
            raised,
            what=bad,
            width=gpu.pcie_width,
            width_max=gpu.pcie_width_max,
            generation=gpu.pcie_generation,
            generation_max=gpu.pcie_generation_max,
            links_up=sum(gpu.links) if gpu.links else None,
            links_down=tuple(sorted(down or ())) or None,
        )

    # --- a card that is not ----------------------------------------------------------------------

    def _absent(self, look: Look, expected: list[KnownGpu]) -> Iterator[Finding | Unknown]:
        uuids = {one.uuid for one in look.gpus}
        silent = {one.address for one in look.gpus if not one.uuid}
        gone = {one.uuid: one for one in expected if one.uuid not in uuids and one.slot not in silent}
        here = {one.address for one in look.gpus}
        for uuid in set(self._missing) - set(gone):
            del self._missing[uuid]
        for uuid, card in gone.items():
            subject = subjects.gpu(card.slot)
            lasts, _ = _lasts(self._missing, uuid, True, look.at)
            if lasts:
                facts = {**_papers(None, card), "expected": len(expected), "seen": len(look.gpus)}
                yield _finding("gpu.missing", subject, Severity.CRITICAL, look, facts)
            else:
                yield Unknown(kind="gpu.missing", subject=subject, why="it may be on its way back")
            if card.slot not in here:
                yield from (Unknown(kind=kind, subject=subject, why="it is missing") for kind in OF_A_CARD[1:])


def _lasts(
    streaks: dict[str, _Streak],
    name: str,
    now: bool | None,
    at: Instant,
    *,
    for_: timedelta = timedelta(),
    calm: int = 1,
) -> tuple[bool | None, timedelta]:
    """Return whether something has lasted for `LOOKS` looks and `for_`, and since when; None: not known yet.

    What has lasted ends after `calm` looks without it. A look that cannot tell changes nothing.
    """
    streak = streaks.get(name)
    if now is None:
        return None, timedelta()
    if not now:
        if streak is None or not streak.lasts:
            streaks.pop(name, None)
            return False, timedelta()
        streak.calm += 1
        if streak.calm < calm:
            return None, timedelta()
        del streaks[name]
        return False, timedelta()
    if streak is None:
        streak = streaks[name] = _Streak(first=at)
    else:
        streak.looks += 1
        streak.calm = 0
    since = at.since(streak.first)
    streak.lasts = streak.lasts or (streak.looks >= LOOKS and since >= for_)
    return (True if streak.lasts else None), since


def _links_down(gpu: GpuLook, past: _Past, look: Look) -> set[int] | None:
    """Return the NVLinks that should be up and are not; None where the driver did not tell.

    Not every board has all of its links wired, so a link counts once it was seen up, or where a GPU of the same
    name in this host has more of them up.
    """
    if "nvmlDeviceGetNvLinkState" in gpu.errors or (past.up and not gpu.links):
        return None
    up = {number for number, state in enumerate(gpu.links) if state}
    down = past.up - up
    past.up |= up
    alike = [one.links for one in look.gpus if one.name == gpu.name and one.links]
    most = max((sum(links) for links in alike), default=0)
    if 0 < len(up) < most:
        theirs = {n for links in alike if sum(links) == most for n, state in enumerate(links) if state}
        down |= theirs - up
    return down


def _below(value: int | None, most: int | None) -> bool | None:
    return None if value is None or not most else value < most


def _papers(gpu: GpuLook | None, card: KnownGpu | None) -> dict[str, Fact]:
    """Return who the card is, from the look, else from the inventory."""
    papers: dict[str, Fact] = {}
    for name in _CARD:
        value = (getattr(gpu, name) if gpu is not None else "") or (getattr(card, name) if card is not None else "")
        if value:
            papers[name] = value
    return papers


def _finding(
    kind: str,
    subject: str,
    severity: Severity,
    look: Look,
    facts: Mapping[str, Fact | None],
    aspect: str = "",
) -> Finding:
    known: dict[str, Fact] = {name: value for name, value in facts.items() if value is not None}
    return Finding(kind=kind, subject=subject, severity=severity, at=look.at, facts=known, aspect=aspect)
