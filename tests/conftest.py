"""For all tests: property tests take the same examples each time, so that a change is judged by what it changed.

BANDOG_SEARCH=1 looks for new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)  # a loaded machine is no failure
settings.register_profile("search", print_blob=True, deadline=None)
settings.load_profile("search" if os.environ.get("BANDOG_SEARCH") else "same")
