"""The scenarios: one module a subject; each registers its own.

A machine of each release runs them in this order: what installs comes first, what removes last. Those that cut
the power come late: an agent that finds no database after three boots within an hour only observes.
"""

ORDER = ("install", "restart", "hung", "plugins", "adverse", "remove")
LONG = ("flood", "crash", "budgets", "powercycle")
"""Played with --all only, before the last of ORDER: floods, kills, used-up budgets and power cuts take long."""
