"""The one literal filter before all log detectors: it drops what nobody wants before it costs anything."""

from __future__ import annotations

from collections.abc import Iterable


def kmsg_escaped(literal: bytes) -> bytes:
    """Return `literal` as a `/dev/kmsg` record spells it.

    Bytes below 0x20, from 0x7f on and the backslash come as `\\xNN` (Linux
    `Documentation/ABI/testing/dev-kmsg`).
    """
    return b"".join(
        b"\\x%02x" % byte if byte < 0x20 or byte >= 0x7F or byte == 0x5C else bytes((byte,)) for byte in literal
    )


class Prefilter:
    """Tells whether a line holds one of the needles, over raw kmsg bytes or over real text.

    A needle within another one is enough for both, so only the shortest are kept.
    """

    def __init__(self, needles: Iterable[bytes]) -> None:
        kept: list[bytes] = []
        for needle in sorted(set(needles), key=lambda one: (len(one), one)):
            if not any(shorter in needle for shorter in kept):
                kept.append(needle)
        self.needles = tuple(kept)
        self._raw = tuple(kmsg_escaped(needle) for needle in kept)
        self._text = tuple(needle.decode("utf-8", "backslashreplace") for needle in kept)

    def wants(self, raw: bytes) -> bool:
        """Return whether a record as read from `/dev/kmsg` holds a needle."""
        for needle in self._raw:  # noqa: SIM110  any() over a generator costs twice as much here
            if needle in raw:
                return True
        return False

    def wants_bytes(self, message: bytes) -> bool:
        """Return whether unescaped bytes, as the journal keeps them, hold a needle."""
        return any(needle in message for needle in self.needles)

    def wants_text(self, text: str) -> bool:
        """Return whether unescaped text holds a needle."""
        return any(needle in text for needle in self._text)
