"""What must survive: SQLite behind one writer thread."""

from __future__ import annotations

from .database import How, Opened
from .errors import StoreError
from .store import Store

__all__ = ["How", "Opened", "Store", "StoreError"]
