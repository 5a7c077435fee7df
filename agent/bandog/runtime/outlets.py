"""One address where people read: an Apprise target, built once at start and kept.

Apprise is the only thing here that knows mail and chat. It is imported when the first outlet is
opened, in the sender's own thread, so that it delays no start; from then on a delivery needs
nothing of the disk.
"""

from __future__ import annotations

import copy
import logging
import socket
import ssl
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .apprise_parts import provide
from .letters import Mail
from .secrets import Secrets

_JSON = ("json", "jsons")
# Apprise plugins that add what `payload_extras` holds to what they post, as text.
_FORMS = ("form", "forms", "xml", "xmls")
_MAIL = ("mailto", "mailtos")


class Outlet(Protocol):
    """Delivers one mail at a time; may block."""

    def send(self, mail: Mail) -> str | None:
        """Deliver; None once the other side has taken it, else why not. Never raises."""


class OutletError(Exception):
    """An address cannot be used; the text is masked."""


class AppriseOutlet:
    """One Apprise URL. Raises OutletError when Apprise cannot use it."""

    def __init__(self, url: str, secrets: Secrets) -> None:
        secrets.add_url(url)
        self._secrets = secrets
        self._apprise = _import()
        self._asset = _asset(self._apprise)
        self._scheme = url.partition("://")[0].lower()
        self._target = self._open(url)

    def send(self, mail: Mail) -> str | None:
        """Deliver by Apprise, in this thread."""
        try:
            teller = self._apprise.Apprise(asset=self._asset)
            teller.add(self._dressed(mail))
            result = teller.notify(body=mail.body, title=mail.title, notify_type=mail.tone, body_format="text")
        except Exception as error:  # a plugin of a hundred by as many authors
            return self._secrets.mask_error(error)
        if result:
            return None
        return self._secrets.mask("; ".join(_words(result)) or "it was not taken")

    def _open(self, url: str) -> Any:
        try:
            # A first one may make Apprise import its plugins, some by modules that Python has deprecated.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                provide(self._apprise, self._scheme)
                target = self._apprise.Apprise.instantiate(url, asset=self._asset, suppress_exceptions=False)
        except Exception as error:  # as in `send`
            raise OutletError(f"{self._scheme}: {self._secrets.mask_error(error)}") from None
        if target is None:
            raise OutletError(f"{self._scheme}: Apprise cannot read this URL")
        return target

    def _dressed(self, mail: Mail) -> Any:
        """Return the target with this mail's thread or fields; others share the one built at start.

        Apprise writes its own `Message-ID` and has no place for the thread's, so all mails of an
        incident refer to one id that no mail carries: RFC 5322 section 3.6.4 threads by References.
        """
        if self._scheme in _MAIL and mail.threads:
            target = copy.copy(self._target)
            target.headers = {
                **target.headers,
                "References": " ".join(mail.threads),
                "In-Reply-To": mail.threads[0],
            }
            return target
        if self._scheme in (*_JSON, *_FORMS) and mail.fields:
            fields = mail.fields if self._scheme in _JSON else _as_text(mail.fields)
            target = copy.copy(self._target)
            target.payload_extras = {**fields, **target.payload_extras}
            return target
        return self._target


def warm_up() -> None:
    """Load once what a delivery will need, while the disk is known to work: Apprise, name lookup, TLS."""
    _import()
    ssl.create_default_context()
    try:
        socket.getaddrinfo("localhost", 25)
    except OSError:
        return


def _import() -> Any:
    import apprise

    # It logs URLs and answers of servers; what we need of that comes back with the result.
    logger = logging.getLogger("apprise")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return apprise


def _asset(apprise: Any) -> Any:
    return apprise.AppriseAsset(
        app_id="bandog",
        app_desc="bandog",
        app_url="",
        async_mode=False,  # in the caller's thread
        service_timeout=0,  # the sender watches the time
        storage_mode="memory",  # nothing on disk
        http_redirects=False,
        image_path_mask=False,
        image_url_mask="",
        interpret_emojis=False,
    )


def _words(result: Any) -> list[str]:
    logs = getattr(result, "logs", None)
    return [str(getattr(entry, "message", entry)) for entry in logs()] if callable(logs) else []


def _as_text(fields: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: ", ".join(str(one) for one in value)
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
        for name, value in fields.items()
    }
