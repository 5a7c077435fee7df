"""The scenarios: one module a subject; each registers its own."""
