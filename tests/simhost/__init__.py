"""A simulated host for the demo and the end-to-end tests: real processes as units, a kernel log to write to."""
