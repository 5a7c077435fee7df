"""The dead-man ping: a URL is asked while bandog is well, so that someone notices when it falls silent."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from ..domain.model import Instant
from ..host.http import HttpClient
from ..host.site import Clock
from .secrets import Secrets

log = logging.getLogger(__name__)

_CALL = timedelta(seconds=20)
# The loop beats once a second; after this long without a beat it hangs, and silence is the message.
_STALE = timedelta(seconds=60)


class Heartbeat:
    """Asks `url` every `every` in a thread of its own, as long as the loop calls `beat`."""

    def __init__(self, url: str, *, every: timedelta, http: HttpClient, clock: Clock, secrets: Secrets) -> None:
        secrets.add_url(url)
        self._url = url
        self._every = every
        self._http = http
        self._clock = clock
        self._secrets = secrets
        self._stopping = threading.Event()
        self._beaten: Instant | None = None
        self.sent = 0
        self.error: str | None = None

    def beat(self) -> None:
        """The loop is alive and well; called from it about once a second."""
        self._beaten = self._clock.now()

    def start(self) -> None:
        """Begin to ping."""
        threading.Thread(target=self._run, name="bandog-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End without a further ping."""
        self._stopping.set()

    def ping(self) -> bool:
        """Ask once if the loop is alive; True when the other side answered with 2xx."""
        beaten = self._beaten
        if beaten is None or self._clock.now().since(beaten) > _STALE:
            return False
        reply = self._http.request("GET", self._url, deadline=_CALL, limit=1024)
        if reply.ok:
            self.sent, self.error = self.sent + 1, None
            return True
        self.error = self._secrets.mask(reply.error or f"HTTP {reply.status}")
        log.warning("the dead-man ping was not taken: %s", self.error)
        return False

    def _run(self) -> None:
        while not self._stopping.wait(self._every.total_seconds()):
            self.ping()
