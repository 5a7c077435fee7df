"""The scenarios: one module a subject; each registers its own.

A machine of each release runs them in this order: what installs comes first, what removes last.
"""

ORDER = ("install", "restart", "hung", "plugins", "budgets", "crash", "remove")
