"""Keeps secrets out of everything that is written: logs, errors, crash text, messages.

Apprise URLs are secrets as a whole, and libraries put pieces of them into their exceptions. So what
is known is replaced wherever it occurs, and what only looks like a secret too.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from urllib.parse import parse_qsl, unquote, urlsplit

MASK = "***"

# URLs of these schemes are addresses; of any other scheme (Apprise has more than a hundred) the
# rest is taken for a secret.
_PLAIN_SCHEMES = frozenset({"http", "https", "file", "tcp", "unix", "ftp", "ssh", "nfs"})
# Apprise's schemes whose first part is a host like any other.
_WITH_HOST = _PLAIN_SCHEMES | frozenset(
    f"{name}{secure}" for name in ("json", "xml", "form", "mailto", "ntfy", "gotify", "apprise") for secure in ("", "s")
)
_URL = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{1,30})://([^\s\"'<>]+)")
_USERINFO = re.compile(r"^[^/@]+@")
_NAMED = re.compile(
    r"(?i)\b(authorization\s*[:=]\s*(?:bearer\s+|basic\s+)?|bearer\s+"
    r"|(?:api[-_]?key|token|password|passwd|secret|webhook)\s*[=:]\s*)([^\s\"'&,;]+)"
)
_SECRET_PARAMETERS = frozenset({"token", "key", "apikey", "api_key", "password", "pass", "secret", "pwd"})
# Shorter than this a word occurs by chance; masking it would tear holes into every log line.
_WORD = 8
_LONG = 16
_PASSWORD = 4


class Secrets:
    """What must not be written, and `mask`, which sees to it. Any thread may call it."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def add_url(self, url: str) -> None:
        """Learn a URL and those of its parts that are secret by themselves."""
        self.add(url, *_parts(url))

    def add(self, *values: str) -> None:
        """Learn secrets as they are and percent-decoded."""
        with self._lock:
            known = {*self._known, *values, *(unquote(value) for value in values)}
            # The longest first, so that no piece of it is left around a shorter one.
            self._known = tuple(sorted((one for one in known if len(one) >= _PASSWORD), key=len, reverse=True))

    def mask(self, text: str) -> str:
        """Return `text` with every known secret, and what looks like one, replaced by `***`."""
        for value in self._known:
            if value in text:
                text = text.replace(value, MASK)
        text = _URL.sub(_mask_url, text)
        return _NAMED.sub(lambda found: f"{found[1]}{MASK}", text)

    def mask_error(self, error: BaseException) -> str:
        """Return an exception's type and text, masked."""
        return self.mask(f"{type(error).__name__}: {error}")


class MaskingFilter(logging.Filter):
    """Masks message, arguments and traceback of each record; belongs on every handler."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record; it is always let through."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = f"{record.msg} (its arguments do not fit)"
        record.msg, record.args = self._secrets.mask(text), ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = self._secrets.mask(_traceback(record.exc_info[1]))
            record.exc_info = None
        return True


def guard_crashes(secrets: Secrets, write: Callable[[str], object] | None = None) -> None:
    """Mask the tracebacks of uncaught exceptions, of the main thread and of others.

    Called once at start. `write` takes the text; standard error by default.
    """
    out = write or sys.stderr.write

    def of_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        out(secrets.mask(_traceback(error)))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            out(secrets.mask(_traceback(args.exc_value)))

    sys.excepthook = of_main
    threading.excepthook = of_thread


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _mask_url(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    if scheme.lower() not in _PLAIN_SCHEMES:
        return f"{scheme}://{MASK}"
    return f"{scheme}://{_USERINFO.sub(f'{MASK}@', rest)}"


def _parts(url: str) -> list[str]:
    """Return the pieces of a URL that a library may quote alone and that nobody may read."""
    try:
        parts = urlsplit(url)
        password, user = parts.password, parts.username
        host = parts.netloc.rpartition("@")[2]
        parameters = parse_qsl(parts.query)
    except ValueError:
        return []
    found = [value for name, value in parameters if _looks_secret(value) or name.lower() in _SECRET_PARAMETERS]
    found += [segment for segment in parts.path.split("/") if _looks_secret(segment)]
    if password:
        found.append(password)
    # Chat services carry a token where others have the user or the host: slack://TokenA/TokenB.
    places = [user or ""] if parts.scheme.lower() in _WITH_HOST else [user or "", *host.split(":")]
    found += [one for one in places if _looks_secret(one) and "." not in one]
    return found


def _looks_secret(word: str) -> bool:
    if "@" in unquote(word) or len(word) < _WORD:
        return False
    return len(word) >= _LONG or (any(c.isdigit() for c in word) and any(c.isalpha() for c in word))
