"""Configuration: YAML layers, validation with file:line:col, JSON Schema."""
