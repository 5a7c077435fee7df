"""`notify`: tell people about the incident, in its thread; the page of a ladder is this with `urgent`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pydantic import field_validator

from bandog import Action, Options, Request, Result, Site, hookimpl


class NotifyWith(Options):
    """`to`: names from `notify:` of the main file, all of them when left out. `urgent` makes it a page."""

    to: tuple[str, ...] = ()
    urgent: bool = False
    text: str = ""

    @field_validator("to", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class Notify(Action):
    """Hand the message to the sender; delivery, retries and the last sink are the sender's."""

    name = "notify"
    With = NotifyWith
    disruptive = False
    proves = False
    run_deadline = timedelta(seconds=10)

    def run(self, request: Request, site: Site) -> Result:
        """Tell, and say whom."""
        wanted = NotifyWith.model_validate(dict(request.with_))
        site.tell(request, to=wanted.to, text=wanted.text, urgent=wanted.urgent)
        whom = ", ".join(wanted.to) or "everyone"
        return Result.done(f"paged {whom}" if wanted.urgent else f"told {whom}", to=list(wanted.to))


@hookimpl
def register_actions(register: Callable[[type[Action]], None]) -> None:
    """Offer the action."""
    register(Notify)
