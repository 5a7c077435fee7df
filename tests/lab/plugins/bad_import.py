"""A test plugin that fails while it is loaded."""

raise RuntimeError("bad at import")
