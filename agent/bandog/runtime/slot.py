"""One disruptive act at a time on a host, and none on GPUs whose service is being proved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

from ..domain.case import describe
from ..domain.model import Request, StepState
from ..services.registry import Service
from .course import Course


class Slot:
    """The host's one permission to act. On the loop only; `freed` is called when others may look again."""

    def __init__(
        self,
        courses: Mapping[str, Course],
        service_of: Callable[[str], Service | None],
        freed: Callable[[], None],
    ) -> None:
        self._courses = courses
        self._service_of = service_of
        self._freed = freed
        self._holder: Course | None = None

    def take(self, course: Course) -> None:
        """Let `course` have it; the caller has just seen that `busy` is None."""
        self._holder = course

    def busy(self, request: Request) -> str | None:
        """Return what must end first: an act anywhere on the host, or a proof on GPUs that are shared."""
        if self._holder is not None:
            other = self._holder.request
            return f"waits for {describe(other.action, other.service)} of incident #{other.incident}"
        for course in self._courses.values():
            other = course.request
            if course.state is not StepState.PROVING or not other.disruptive or other.id == request.id:
                continue
            if self._overlap(request, other):
                return f"waits for the proof of {describe(other.action, other.service)} of incident #{other.incident}"
        return None

    def give_back(
        self, course: Course, *, late: asyncio.Future[None] | None = None, within: timedelta = timedelta()
    ) -> None:
        """Take it from `course`. A run that was left behind in its thread may still act: then it is
        free only when that ends (`late`), or after `within`."""
        if self._holder is not course:
            return
        if late is None or late.done():
            self._holder = None
            self._freed()
            return
        late.add_done_callback(lambda _: self.give_back(course))
        asyncio.get_running_loop().call_later(within.total_seconds(), self.give_back, course)

    def _overlap(self, one: Request, other: Request) -> bool:
        if one.service is None or other.service is None or one.service == other.service:
            return True
        return share_gpus(self._service_of(one.service), self._service_of(other.service))


def share_gpus(one: Service | None, other: Service | None) -> bool:
    """True unless it is certain that two services use no GPU in common."""
    if one is None or other is None or one.name == other.name:
        return True
    if not one.gpus or not other.gpus:
        return False
    if isinstance(one.gpus, str) or isinstance(other.gpus, str):  # "all"
        return True
    if set(one.gpus) & set(other.gpus):
        return True
    # An address and a UUID may name the same GPU, and nothing here can tell.
    return len({gpu.upper().startswith("GPU-") for gpu in (*one.gpus, *other.gpus)}) > 1
