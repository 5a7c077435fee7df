"""Plugins that come with bandog, found by entry points like everyone else's."""
