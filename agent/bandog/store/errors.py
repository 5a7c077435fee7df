"""What can go wrong between us and the disk, as types that callers can tell apart."""

from __future__ import annotations


class StoreError(Exception):
    """A commit will never become durable: the store was closed, is full, or cannot express the row."""


class StoreUnavailable(Exception):
    """The database cannot be reached now: frozen, read-only, full, no permission, held by another bandog.

    The file itself may be whole; nothing was changed.
    """


class StoreBroken(Exception):
    """The file is no database of ours, is damaged, or was made by a newer bandog."""
